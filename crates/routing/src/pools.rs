//! Two pools for one request: workers that compute its prompt, and workers that generate.
//!
//! The decode leg is chosen first, by the job's own policy among the job's own candidates; the
//! overlap of its winner decides whether a separate prefill is worthwhile. The prefill leg is
//! chosen by the pool's policy. Each leg is a reservation of its own, made under the lock of its
//! choice.
//!
//! **Invariant**: a prompt is counted where it is computed and nowhere else. The prefill leg counts
//! its tokens until it ends and never a block of an active sequence; the decode leg of such a
//! request counts blocks and no prompt.

use std::sync::Arc;

use kv_blocks::Moment;

use crate::{
    AttemptEnd, PrefillLeg, PrefillNote, PrefillSkip, ReleasedRequest, ReservationId, Router,
    choice::Choice,
    decide::ScoreRules,
    pool_split::{PoolSplit, PromptLocation},
    prefill_pool::PrefillDecision,
    queue::RequestWork,
};

impl Router {
    /// Chooses the target that computes the prompt for the winner of `choice`, and counts its load.
    pub(crate) fn prefill(
        &self,
        now: Moment,
        split: &PoolSplit<'_>,
        choice: &Choice<'_>,
    ) -> PrefillDecision {
        let job = match split.prefill_job(choice.winner()) {
            None => return PrefillDecision::default(),
            Some(Err(reason)) => {
                return PrefillDecision {
                    note: Some(skipped(reason)),
                    ..PrefillDecision::default()
                };
            }
            Some(Ok(job)) => job,
        };
        let reserved = self.score(now, &job, ScoreRules::PREFILL_LEG, |state, choice| {
            let queue = &self.settings.load().queue;
            let id = state.reserve(now, &job, choice, PromptLocation::Here, queue);
            let work = RequestWork {
                prefill_ms: choice.winner().prefill_ms(),
                // The decode leg's.
                decode_ms: 0.0,
            };
            state.queue.charge(id, (&job.tenant(), None), work);
            id
        });
        // A pool with candidates never refuses: a pinned target is one of them.
        let Ok((choice, reservation)) = reserved else {
            return PrefillDecision {
                note: Some(skipped(PrefillSkip::NoPrefillWorker)),
                ..PrefillDecision::default()
            };
        };
        self.speculate(now, &choice, 0.0, reservation);
        let (note, winner) = (chosen(&choice), choice.winner());
        let surveyed = &winner.overlap;
        let leg = PrefillLeg {
            reservation,
            target: winner.target(),
            name: Arc::clone(&surveyed.candidate.name),
            cache: surveyed.candidate.cache,
            predicted_cached_tokens: surveyed.predicted_cached_tokens,
            announced_cached_tokens: surveyed.announced_cached_tokens,
        };
        PrefillDecision {
            leg: Some(leg),
            note: Some(note),
            wait_ms: winner.state.backlog_ms + winner.prefill_ms(),
        }
    }

    /// Ends a reservation whose request was not sent, through no fault of the worker: frees its
    /// load and withdraws its speculation from the index. Unknown and repeated ids are ignored.
    /// Returns queued requests that may start now.
    pub fn withdraw(&self, now: Moment, id: ReservationId) -> Vec<ReleasedRequest> {
        self.end_attempt(now, id, AttemptEnd::NotTaken)
    }
}

pub(crate) fn skipped(reason: PrefillSkip) -> PrefillNote {
    PrefillNote {
        skipped: Some(reason),
        ..PrefillNote::default()
    }
}

pub(crate) fn chosen(choice: &Choice<'_>) -> PrefillNote {
    let winner = choice.winner();
    PrefillNote {
        target: Some((winner.target(), Arc::clone(&winner.overlap.candidate.name))),
        ..PrefillNote::default()
    }
}
