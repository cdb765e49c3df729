//! The account of an attempt beside which another worker was asked.

use std::sync::Arc;

use kv_blocks::Moment;
use routing::receipt::{Attempt, AttemptResult};

use super::Settle;
use crate::request::{decide::Placed, dispatch::Failure};

impl Settle {
    /// The second worker is the one now, asked at `since`. The first failed so, or is given up.
    pub(in crate::request) fn hedge_won(&mut self, placed: Placed, since: Moment, failure: Option<&Failure>) {
        match failure {
            Some(failure) => self.attempt_failed(failure),
            None => {
                // Its load is free before the other's counts; that it was given up says nothing of it.
                self.lease = None;
                self.close_attempt(None, AttemptResult::Cancelled, None);
            }
        }
        let Placed { decision, lease, .. } = placed;
        self.placed(decision, lease, None);
        if let Some(open) = &mut self.open {
            open.started = since;
        }
        if let Some(won) = &mut self.won {
            won.sent = since;
        }
    }

    /// The first worker stays the one. The second, asked at `since`, failed so, or is given up.
    pub(in crate::request) fn hedge_lost(&mut self, placed: Placed, since: Moment, failure: Option<&Failure>) {
        let Placed { decision, lease, .. } = placed;
        let target = lease.target();
        let (class, result, status) = match failure {
            Some(failure) => {
                lease.fail();
                if let Some(kind) = failure.kind {
                    self.gateway.fleet.report_failure(target.worker, kind);
                    self.gateway.metrics.worker_failed(&decision.winner_name, kind.as_str());
                }
                (failure.class, failure.result, failure.status)
            }
            None => (None, AttemptResult::Cancelled, None),
        };
        self.gateway.metrics.attempted(class.map_or("", |class| class.as_str()), result.as_str());
        self.unjudged(target, since);
        self.attempts.push(Attempt {
            n: u32::try_from(self.attempts.len()).unwrap_or(u32::MAX).saturating_add(1),
            target,
            name: Arc::clone(&decision.winner_name),
            class,
            result,
            status,
            ms: self.gateway.clock.now().ms_since(since),
        });
    }
}
