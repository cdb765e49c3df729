//! Blocks that a target is about to hold, entered in the index before the engine announces them.

use std::time::Duration;

use kv_blocks::Moment;
use kv_index::SpeculationId;

use crate::{CacheSource, ReservationId, Router, choice::Choice, policy::input::PolicyCandidate};

impl Router {
    /// Tells the index the blocks that the winner is about to hold, and stores the speculation with
    /// the reservation.
    pub(crate) fn speculate(
        &self,
        now: Moment,
        choice: &Choice<'_>,
        wait_ms: f64,
        reservation: ReservationId,
    ) {
        if let Some(promised) = self.expect_blocks(now, choice, wait_ms) {
            self.state
                .lock()
                .ledger
                .set_speculation(reservation, promised);
        }
    }

    /// Tells the index the blocks that the winner is about to hold.
    ///
    /// For a target without events the index learns nothing else. For one with events the entry
    /// bridges the time until the engine announces the blocks: its time to live counts from the end
    /// of the target's queue, or a burst behind a long queue would find nothing. `wait_ms` is how
    /// long another target computes the prompt first.
    fn expect_blocks(
        &self,
        now: Moment,
        choice: &Choice<'_>,
        wait_ms: f64,
    ) -> Option<SpeculationId> {
        let PolicyCandidate {
            overlap: surveyed,
            state: standing,
        } = choice.winner();
        let candidate = surveyed.candidate;
        let (target, namespace) = (candidate.target, &candidate.namespace);
        let chain = choice.input.prompts[surveyed.prompt]
            .chain
            .as_deref()
            .filter(|chain| !chain.is_empty())?;
        match candidate.cache {
            CacheSource::Predicted => Some(self.index.predict(
                target,
                namespace,
                chain,
                now,
                self.settings.load().prediction_ttl,
            )),
            CacheSource::Events if self.settings.load().section.speculative => {
                let ttl = self.settings.load().section.speculative_ttl
                    + Duration::from_secs_f64((standing.backlog_ms + wait_ms) / 1e3);
                Some(self.index.speculate(target, namespace, chain, now, ttl))
            }
            CacheSource::Events => None,
        }
    }
}
