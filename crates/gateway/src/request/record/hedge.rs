//! Hedged attempts in the request guard.

use otlp::SpanContext;
use routing::receipt::AttemptResult;

use super::{
    RequestGuard,
    attempts::{OpenAttempt, OpenHedge},
};
use crate::{
    lease::{Lease, PlacedAttempt},
    request::{attempt_failure::AttemptFailure, engine_priority, fetch},
};

impl RequestGuard {
    /// Records that a hedge is sent now; this guard frees its load if no answer follows. Returns
    /// the context that its worker gets.
    pub(in crate::request) fn begin_hedge(&mut self, placed: PlacedAttempt) -> Option<SpanContext> {
        self.trace_decision(&placed.decision);
        let since = self.recorder.clock.now();
        let span = self.draft.trace.next_attempt();
        self.attempt.hedge = Some(Box::new(OpenHedge {
            placed,
            since,
            span,
        }));
        self.draft.trace.context(span)
    }

    /// Makes the hedge the current attempt. The first one failed, or is cancelled.
    pub(in crate::request) fn record_hedge_won(&mut self, failure: Option<&AttemptFailure>) {
        let Some(hedge) = self.attempt.hedge.take() else {
            return;
        };
        let OpenHedge {
            placed,
            since,
            span,
        } = *hedge;
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
        // Both got the same body, and only the first had an engine priority or a source of blocks.
        let mut rewrites = std::mem::take(&mut self.draft.rewrites);
        rewrites.retain(|rewrite| ![engine_priority::REWRITE, fetch::REWRITE].contains(rewrite));
        self.place(decision, lease, None);
        self.draft.rewrites = rewrites;
        if let Some(open) = &mut self.attempt.open {
            open.started = since;
            open.span = span;
        }
        if let Some(selection) = &mut self.selection {
            selection.sent = since;
        }
    }

    /// Keeps the first attempt. The hedge failed, or is cancelled.
    pub(in crate::request) fn record_hedge_lost(&mut self, failure: Option<&AttemptFailure>) {
        match failure {
            Some(failure) => {
                if let Some((lease, second)) = self.take_hedge() {
                    lease.end_with(failure.attempt_end());
                    self.failed(second, failure);
                }
            }
            None => self.end_hedge(AttemptResult::Cancelled),
        }
    }

    /// Ends a hedge that has not answered, if there is one.
    pub(super) fn end_hedge(&mut self, result: AttemptResult) {
        if let Some((lease, second)) = self.take_hedge() {
            drop(lease);
            self.finish_attempt(second, None, result, None);
        }
    }

    fn take_hedge(&mut self) -> Option<(Lease, OpenAttempt)> {
        let OpenHedge {
            placed,
            since,
            span,
        } = *self.attempt.hedge.take()?;
        let PlacedAttempt {
            decision, lease, ..
        } = placed;
        let second = OpenAttempt {
            target: lease.target(),
            name: decision.winner.name,
            started: since,
            span,
        };
        Some((lease, second))
    }
}
