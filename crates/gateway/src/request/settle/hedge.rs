//! The account of an attempt beside which another worker was asked.

use kv_blocks::Moment;
use routing::receipt::AttemptResult;

use super::{Settle, attempts::OpenAttempt};
use crate::request::{decide::Placed, dispatch::Failure, turn};

impl Settle {
    /// The second worker is the one now, asked at `since`. The first failed so, or is given up.
    pub(in crate::request) fn hedge_won(
        &mut self,
        placed: Placed,
        since: Moment,
        failure: Option<&Failure>,
    ) {
        match failure {
            Some(failure) => self.attempt_failed(failure),
            None => {
                // Its load is free before the other's counts; that it was given up says nothing of it.
                self.lease = None;
                self.close_attempt(None, AttemptResult::Cancelled, None);
            }
        }
        let Placed {
            decision, lease, ..
        } = placed;
        // Both were asked in the same words, and only the first was told its turn.
        let mut rewrites = std::mem::take(&mut self.rewrites);
        rewrites.retain(|rewrite| *rewrite != turn::REWRITE);
        self.placed(decision, lease, None);
        self.rewrites = rewrites;
        if let Some(open) = &mut self.open {
            open.started = since;
        }
        if let Some(won) = &mut self.won {
            won.sent = since;
        }
    }

    /// The first worker stays the one. The second, asked at `since`, failed so, or is given up.
    pub(in crate::request) fn hedge_lost(
        &mut self,
        placed: Placed,
        since: Moment,
        failure: Option<&Failure>,
    ) {
        let Placed {
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
                self.closed(second, None, AttemptResult::Cancelled, None);
            }
        }
    }
}
