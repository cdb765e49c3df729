//! A choice with what its caller knows about it, and its conversion to a decision.

use crate::{
    Decision, DecisionTiming, ExcludedTarget, Job, Method, PrefillNote,
    choice::{Choice, DecisionContext},
    policy::input::PolicyCandidate,
    pool_split::PoolSplit,
    prompt_location::PromptLocation,
};

/// A choice and its circumstances that only the caller knows.
pub(crate) struct ScoredChoice<'a> {
    pub(crate) choice: Choice<'a>,
    pub(crate) excluded: Vec<ExcludedTarget>,
    pub(crate) started_us: f64,
    pub(crate) hash_us: f64,
    pub(crate) lookup_us: f64,
}

impl ScoredChoice<'_> {
    pub(crate) fn decision(
        self,
        split: &PoolSplit<'_>,
        prefill: Option<PrefillNote>,
        kept: usize,
    ) -> Decision {
        let job = &split.decode;
        let Self {
            choice,
            excluded,
            started_us,
            hash_us,
            lookup_us,
        } = self;
        let method = method(job, &choice);
        let decide_us = job.stopwatch.elapsed_us() - started_us - lookup_us - hash_us;
        let elsewhere = split.prompt(choice.winner()) == PromptLocation::Elsewhere;
        let mut decision = choice.decision(
            DecisionContext {
                method,
                excluded,
                timing: DecisionTiming {
                    hash_us,
                    lookup_us,
                    decide_us,
                },
            },
            kept,
        );
        if elsewhere {
            decision.winner.reserved.prefill_tokens = 0;
        }
        let pool = job.prefill.iter();
        decision
            .excluded
            .extend(pool.flat_map(|pool| pool.targets.excluded).cloned());
        Decision {
            prefill,
            ..decision
        }
    }
}

/// Returns the estimated time to compute the part of the prompt that the winner does not hold.
pub(crate) fn prefill_ms(job: &Job<'_>, choice: &Choice<'_>) -> f64 {
    let PolicyCandidate {
        overlap: surveyed,
        state: standing,
    } = choice.winner();
    let (all, uncached) = (
        f64::from(job.prompt.tokens),
        f64::from(surveyed.uncached_tokens),
    );
    standing.rates.prefill_ms(all - uncached, uncached)
}

fn method(job: &Job<'_>, choice: &Choice<'_>) -> Method {
    match (job.pin, choice.order.len()) {
        (Some(_), _) => Method::Pinned,
        (None, 1) => Method::OnlyCandidate,
        (None, _) if choice.by_session() => Method::Session,
        (None, _) if choice.fell_back() => Method::Fallback,
        (None, _) => Method::Policy,
    }
}
