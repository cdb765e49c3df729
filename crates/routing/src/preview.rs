//! What the router would decide; nothing here changes load, index or turns.

use std::sync::Arc;

use kv_blocks::{Moment, Target};

use crate::{
    Decision, Job, PrefillNote, Refusal, Router,
    choice::{Choice, PlacementError},
    decide::ScoreRules,
    policy::rule::PolicyCandidate,
    pool_split::{PoolSplit, PromptLocation},
    pools::{chosen, skipped},
};

/// The work and blocks of a target if a request went there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PotentialLoad {
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Prompt tokens to compute: the queued ones, and the uncached tokens of the request.
    pub prefill_tokens: u64,
    /// Blocks of its active sequences and of the request's prompt, shared prefixes counted once.
    pub decode_blocks: u64,
}

impl Router {
    /// Returns what [`Router::decide`] would decide now and changes nothing: no load, no entry in
    /// the index, no turn used up.
    ///
    /// # Errors
    ///
    /// Returns the refusal that `decide` would return.
    pub fn preview(&self, now: Moment, job: &Job<'_>) -> Result<Decision, Refusal> {
        let split = PoolSplit::of(job);
        let settings = self.settings.load();
        let (targets, spent) = (settings.slo_of(job), job.reply.slo.spent);
        let (choice, slo) = self
            .score(now, &split.decode, ScoreRules::PREVIEW, |state, choice| {
                let prompt = split.prompt(choice.winner());
                state.slo_note(targets, spent, (choice, prompt))
            })
            .map_err(PlacementError::refusal)?;
        let note = self.prefill_preview(now, &split, &choice);
        let mut decision = choice.decision(&split, note, settings.kept_candidates);
        decision.winner.slo = slo;
        Ok(decision)
    }

    /// Returns what every eligible target, of both pools where there are two, would have to compute
    /// and to hold if `job` went there, in the order of the targets; changes nothing.
    ///
    /// # Errors
    ///
    /// Returns the refusal that `decide` would return.
    pub fn potential_loads(
        &self,
        now: Moment,
        job: &Job<'_>,
    ) -> Result<Vec<PotentialLoad>, Refusal> {
        let split = PoolSplit::of(job);
        let (choice, ()) = self
            .score(now, &split.decode, ScoreRules::PREVIEW, |_, _| ())
            .map_err(PlacementError::refusal)?;
        let mut loads = choice.potential_loads(|contender| split.prompt(contender));
        loads.extend(self.prefill_loads(now, &split));
        loads.sort_unstable_by_key(|load| load.target);
        Ok(loads)
    }

    /// Returns the target that would compute the prompt for the winner of `choice`.
    fn prefill_preview(
        &self,
        now: Moment,
        split: &PoolSplit<'_>,
        choice: &Choice<'_>,
    ) -> Option<PrefillNote> {
        match split.prefill_job(choice.winner())? {
            Err(reason) => Some(skipped(reason)),
            Ok(job) => self
                .score(now, &job, ScoreRules::PREFILL_LEG, |_, _| ())
                .ok()
                .map(|(choice, ())| chosen(&choice)),
        }
    }

    /// Returns what every target of the prefill pool would have to compute.
    fn prefill_loads(&self, now: Moment, split: &PoolSplit<'_>) -> Vec<PotentialLoad> {
        let scored = split.prefill.and_then(|job| {
            self.score(now, &job, ScoreRules::PREFILL_LEG, |_, _| ())
                .ok()
        });
        scored.map_or_else(Vec::new, |(choice, ())| {
            choice.potential_loads(|_| PromptLocation::Here)
        })
    }
}

impl Choice<'_> {
    /// Returns what each candidate would have to compute and to hold with this request.
    /// `prompt` gives the location where the prompt is computed if the candidate generates.
    fn potential_loads(
        &self,
        prompt: impl Fn(&PolicyCandidate<'_>) -> PromptLocation,
    ) -> Vec<PotentialLoad> {
        let candidates = self.input.candidates.iter();
        candidates
            .map(|contender| PotentialLoad {
                target: contender.target(),
                name: Arc::clone(&contender.overlap.candidate.name),
                prefill_tokens: match prompt(contender) {
                    PromptLocation::Here => contender.prefill_tokens_after(),
                    PromptLocation::Elsewhere => contender.state.load.queued_prefill_tokens,
                },
                decode_blocks: contender.state.blocks_after,
            })
            .collect()
    }
}
