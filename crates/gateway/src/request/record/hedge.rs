//! Hedged attempts in the request guard.

use kv_blocks::Moment;
use routing::receipt::AttemptResult;

use super::{RequestGuard, attempts::OpenAttempt};
use crate::request::{decide::PlacedAttempt, dispatch::AttemptFailure, engine_priority};

impl RequestGuard {
    /// Makes the hedge, sent at `since`, the current attempt. The first one failed, or is
    /// cancelled.
    pub(in crate::request) fn record_hedge_won(
        &mut self,
        placed: PlacedAttempt,
        since: Moment,
        failure: Option<&AttemptFailure>,
    ) {
        match failure {
            Some(failure) => self.fail_attempt(failure),
            None => {
                // Its load is freed before the hedge's is recorded; the cancellation is no verdict
                // on the worker.
                self.attempt.lease = None;
                self.close_attempt(None, AttemptResult::Cancelled, None);
            }
        }
        let PlacedAttempt {
            decision, lease, ..
        } = placed;
        // Both got the same body, and only the first had an engine priority.
        let mut rewrites = std::mem::take(&mut self.draft.rewrites);
        rewrites.retain(|rewrite| *rewrite != engine_priority::REWRITE);
        self.record_placement(decision, lease, None);
        self.draft.rewrites = rewrites;
        if let Some(open) = &mut self.attempt.open {
            open.started = since;
        }
        if let Some(won) = &mut self.selection {
            won.sent = since;
        }
    }

    /// Keeps the first attempt. The hedge, sent at `since`, failed, or is cancelled.
    pub(in crate::request) fn record_hedge_lost(
        &mut self,
        placed: PlacedAttempt,
        since: Moment,
        failure: Option<&AttemptFailure>,
    ) {
        let PlacedAttempt {
            decision, lease, ..
        } = placed;
        let second = OpenAttempt {
            target: lease.target(),
            name: decision.winner_name,
            started: since,
        };
        match failure {
            Some(failure) => {
                lease.fail();
                self.failed(second, failure);
            }
            None => {
                drop(lease);
                self.finish_attempt(second, None, AttemptResult::Cancelled, None);
            }
        }
    }
}
