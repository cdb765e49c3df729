//! Latency targets of a request against the router's predictions.
//!
//! A prediction errs, and how far is learned (`ttft_parity`). Slack and headroom count with a
//! cautious prediction, before which nine in ten first tokens come. A request that waits is late once
//! a likely one misses its target, and a new one is refused only if a hopeful one does on every
//! candidate: nine in ten such requests would miss it.

use std::time::Duration;

use kv_blocks::Moment;

use crate::{
    Job, RoutingSettings, SloTargets,
    choice::Choice,
    policy::{cost::CandidateCost, rule::PolicyCandidate},
    pool_split::PromptLocation,
    queue::{OrderTerms, TargetTerms, TtftNeeds},
    state::RouterState,
    ttft_parity::{CAUTIOUS, HOPEFUL, LIKELY},
};

/// The targets of a request, and what the router expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SloNote {
    /// The targets.
    pub targets: SloTargets,
    /// Time from the request's arrival to its first token, with the margin that predictions need;
    /// `None`: the policy has no time model, another worker computes the prompt, or there is no
    /// target for it.
    pub predicted_ttft: Option<Duration>,
}

impl SloNote {
    /// Returns the milliseconds that the prediction leaves of the target for the first token, below 0
    /// if it misses the target.
    pub fn headroom_ms(&self) -> Option<f64> {
        let (target, predicted) = self.targets.ttft.zip(self.predicted_ttft)?;
        Some((target.as_secs_f64() - predicted.as_secs_f64()) * 1e3)
    }
}

impl SloTargets {
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl RoutingSettings {
    /// Returns the targets of a job.
    pub(crate) fn slo_of(&self, job: &Job<'_>) -> SloTargets {
        job.reply.slo.targets.or(self.section.slo.targets())
    }
}

impl Job<'_> {
    /// Returns the job's target as a term of the queue's order; `None`: it has no target for its first
    /// token.
    pub(crate) fn target_terms(
        &self,
        now: Moment,
        settings: &RoutingSettings,
        needs: TtftNeeds,
    ) -> Option<TargetTerms> {
        let ttft = settings.slo_of(self).ttft?;
        Some(TargetTerms {
            arrived: now - self.reply.slo.spent,
            due: now + ttft - self.reply.slo.spent,
            needs,
            is_lapsed: false,
        })
    }
}

impl RouterState {
    /// Returns the time from the beginning of a request on the winner to its first token.
    pub(crate) fn ttft_needs(&self, choice: &Choice<'_>) -> TtftNeeds {
        let (worker, ms) = (choice.winner().target().worker, choice.own_ttft_ms());
        let within = |share: f64| ms * self.ttft_parity.factor(worker, ms, share);
        TtftNeeds {
            likely_ms: within(LIKELY),
            cautious_ms: within(CAUTIOUS),
        }
    }

    /// Returns the targets of a job that arrived `spent` ago, and what is expected of the winner;
    /// `None`: it has no target.
    pub(crate) fn slo_note(
        &self,
        targets: SloTargets,
        spent: Duration,
        (choice, prompt): (&Choice<'_>, PromptLocation),
    ) -> Option<SloNote> {
        if targets.is_empty() {
            return None;
        }
        let is_predicted = targets.ttft.is_some() && prompt == PromptLocation::Here;
        let predicted = choice.predicted_ttft_ms().filter(|_| is_predicted);
        let worker = choice.winner().target().worker;
        let cautious_ms = |ms: f64| ms * self.ttft_parity.factor(worker, ms, CAUTIOUS);
        let from_now = predicted.and_then(|ms| duration(cautious_ms(ms)));
        Some(SloNote {
            targets,
            predicted_ttft: from_now.map(|from_now| spent.saturating_add(from_now)),
        })
    }

    /// Returns what a hopeful prediction expects of a new job on the best of its candidates, if that
    /// misses its target; `None`: it may meet it, has none, or is not predicted.
    pub(crate) fn certain_miss(
        &self,
        now: Moment,
        job: &Job<'_>,
        settings: &RoutingSettings,
        choice: &Choice<'_>,
    ) -> Option<SloNote> {
        let is_tested = settings.section.slo.refuse && !job.reply.slo.is_admitted;
        if !is_tested || job.prefill.is_some() {
            return None;
        }
        let targets = settings.slo_of(job);
        let target = targets.ttft?;
        let least_ms = self.least_ttft_ms(now, choice)?;
        let spent = job.reply.slo.spent;
        let alone = spent.saturating_add(duration(least_ms)?);
        let predicted = if alone > target {
            alone
        } else {
            let waits_ms = self.ahead_ms(now, job, settings, choice);
            alone.saturating_add(duration(waits_ms)?)
        };
        (predicted > target).then_some(SloNote {
            targets,
            predicted_ttft: Some(predicted),
        })
    }

    /// Returns the shortest hopeful prediction of all candidates; `None`: one has no prediction, or has
    /// nothing to do although its speed is unknown or old. Such a one has to serve a request now and
    /// then: with all refused, a prediction that is too long would never be corrected.
    fn least_ttft_ms(&self, now: Moment, choice: &Choice<'_>) -> Option<f64> {
        let hopeful_ms = |(contender, price): (&PolicyCandidate<'_>, &CandidateCost)| {
            let (worker, ms) = (contender.target().worker, price.predicted_ttft_ms?);
            let load = &contender.state.load;
            // All of its requests have their first token.
            let is_idle = load.decode_sequences >= load.in_flight;
            let is_probed = is_idle && !self.rates.is_current(now, worker);
            (!is_probed).then(|| ms * self.ttft_parity.factor(worker, ms, HOPEFUL))
        };
        let candidates = choice.input.candidates.iter().zip(&choice.prices);
        let mut hopeful = candidates.map(hopeful_ms);
        hopeful.try_fold(f64::INFINITY, |least, ms| Some(least.min(ms?)))
    }

    /// Returns a time that a new job waits at least behind requests of its tenant.
    fn ahead_ms(
        &self,
        now: Moment,
        job: &Job<'_>,
        settings: &RoutingSettings,
        choice: &Choice<'_>,
    ) -> f64 {
        let winner = choice.winner();
        let terms = OrderTerms {
            priority: job.overrides.priority,
            program_start_ms: 0.0,
            since: now,
            until: now + settings.queue.wait,
            uncached_ms: winner.prefill_ms(),
            target: job.target_terms(now, settings, self.ttft_needs(choice)),
        };
        let rank = terms.rank(now, settings.queue.ageing);
        let target = winner.target();
        let ahead_ms = self.queue.ahead_ms(target, &job.tenant(), rank);
        ahead_ms * self.ttft_parity.factor(target.worker, ahead_ms, HOPEFUL)
    }
}

/// Returns a number of milliseconds as a duration; `None`: it is none.
fn duration(ms: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(ms / 1e3).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headroom_is_what_a_prediction_leaves_of_the_target() {
        let note = |target: Option<u64>, predicted: Option<u64>| SloNote {
            targets: SloTargets {
                ttft: target.map(Duration::from_millis),
                tpot: None,
            },
            predicted_ttft: predicted.map(Duration::from_millis),
        };
        for (target, predicted, headroom) in [
            (Some(500), Some(200), Some(300.0)),
            (Some(200), Some(500), Some(-300.0)),
            (Some(200), None, None),
            (None, Some(200), None),
        ] {
            let found = note(target, predicted).headroom_ms();
            let differs = |(found, expected): (f64, f64)| (found - expected).abs() > 1e-6;
            assert_eq!(found.is_some(), headroom.is_some());
            assert!(!found.zip(headroom).is_some_and(differs), "{found:?}");
        }
    }

    #[test]
    fn own_targets_come_before_the_usual_ones_each_for_itself() {
        let targets = |ttft: Option<u64>, tpot: Option<u64>| SloTargets {
            ttft: ttft.map(Duration::from_millis),
            tpot: tpot.map(Duration::from_millis),
        };
        let usual = targets(Some(500), Some(50));
        assert_eq!(targets(None, None).or(usual), usual);
        assert_eq!(targets(Some(1), None).or(usual), targets(Some(1), Some(50)));
        assert_eq!(
            targets(None, Some(2)).or(usual),
            targets(Some(500), Some(2))
        );
    }
}
