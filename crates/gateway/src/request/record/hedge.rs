//! The account of an attempt beside which another worker was asked.

use kv_blocks::Moment;
use routing::receipt::AttemptResult;

use super::{RequestGuard, attempts::OpenAttempt};
use crate::request::{decide::PlacedAttempt, dispatch::AttemptFailure, engine_priority};

impl RequestGuard {
    /// The second worker is the one now, asked at `since`. The first failed so, or is given up.
    pub(in crate::request) fn record_hedge_won(
        &mut self,
        placed: PlacedAttempt,
        since: Moment,
        failure: Option<&AttemptFailure>,
    ) {
        match failure {
            Some(failure) => self.fail_attempt(failure),
            None => {
                // Its load is free before the other's counts; that it was given up says nothing of it.
                self.lease = None;
                self.close_attempt(None, AttemptResult::Cancelled, None);
            }
        }
        let PlacedAttempt {
            decision, lease, ..
        } = placed;
        // Both were asked in the same words, and only the first was told its turn.
        let mut rewrites = std::mem::take(&mut self.rewrites);
        rewrites.retain(|rewrite| *rewrite != engine_priority::REWRITE);
        self.record_placement(decision, lease, None);
        self.rewrites = rewrites;
        if let Some(open) = &mut self.open {
            open.started = since;
        }
        if let Some(won) = &mut self.selection {
            won.sent = since;
        }
    }

    /// The first worker stays the one. The second, asked at `since`, failed so, or is given up.
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
