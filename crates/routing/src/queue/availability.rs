//! Decides whether a target can take one of the requests that wait for it.

use std::time::Duration;

use kv_blocks::{Moment, Target};

use super::{QueueSettings, candidate_queue::CandidateQueue};
use crate::ledger::Ledger;

/// The conditions under which a target is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetAvailability<'a> {
    ledger: &'a Ledger,
    /// A target with a longer backlog is closed.
    longest_backlog: Duration,
}

impl<'a> TargetAvailability<'a> {
    pub(crate) fn new(ledger: &'a Ledger, settings: &QueueSettings) -> Self {
        Self {
            ledger,
            longest_backlog: settings.longest_backlog(ledger.replicas()),
        }
    }

    pub(super) fn is_available(&self, now: Moment, target: Target, queue: &CandidateQueue) -> bool {
        let begins = || {
            queue.any_ignores_backlog() || self.ledger.is_below(now, target, self.longest_backlog)
        };
        self.has_capacity(target, queue) && begins()
    }

    /// Returns when the target opens if no event comes before.
    pub(super) fn available_at(
        &self,
        now: Moment,
        target: Target,
        queue: &CandidateQueue,
    ) -> Option<Moment> {
        if self.has_capacity(target, queue) {
            self.ledger
                .falls_below_at(now, target, self.longest_backlog)
        } else {
            None
        }
    }

    fn has_capacity(&self, target: Target, queue: &CandidateQueue) -> bool {
        queue
            .busy_threshold()
            .is_none_or(|threshold| !self.ledger.is_above(target, threshold))
    }
}
