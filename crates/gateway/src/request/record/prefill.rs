//! The prefill leg in the request guard: its worker, its result, and its effect on the request.

use dialect::Usage;
use parity::Basis;
use routing::{
    CacheSource, PrefillLeg, PrefillSkip,
    receipt::{AttemptClass, AttemptResult},
};

use super::{
    RequestGuard,
    attempts::OpenLeg,
    trace::{ATTEMPT, AttemptSpan, EndedAttempt, PREFILL},
};
use crate::{
    lease::Lease,
    request::{attempt_failure::AttemptFailure, prefill::Handover, receipt::Selection},
};

impl RequestGuard {
    /// Records a prefill leg: the decode worker gets nothing before its own leg is sent.
    pub(super) fn begin_prefill(&mut self, leg: PrefillLeg) {
        self.attempt.leg = Some(OpenLeg {
            leg,
            started: self.recorder.clock.now(),
            span: self.draft.trace.next_attempt(),
        });
        if let Some(lease) = &mut self.attempt.lease {
            lease.mark_unsent();
        }
    }

    /// Records that the decode leg is sent now.
    pub(crate) fn record_decode_sent(&mut self) {
        let now = self.recorder.clock.now();
        if let Some(lease) = &mut self.attempt.lease {
            lease.mark_sent();
        }
        if let Some(open) = &mut self.attempt.open {
            open.started = now;
        }
        if let Some(selection) = &mut self.selection {
            selection.sent = now;
        }
    }

    /// Ends the prefill without a failure: the prompt is computed, or the request ended before.
    pub(crate) fn finish_prefill(&mut self, computed: bool, usage: Option<Usage>) {
        let Some(open) = self.attempt.leg.take() else {
            return;
        };
        let result = if computed {
            AttemptResult::Ok
        } else {
            AttemptResult::Cancelled
        };
        self.trace_leg(&open, result, None);
        let OpenLeg { leg, started, .. } = open;
        if let Some(lease) = &mut self.attempt.lease {
            lease.finish_prefill(computed);
        }
        if !computed {
            return self.record_incomparable(leg.target, started);
        }
        let ms = self.recorder.clock.now().ms_since(started);
        self.attempt.prefill.get_or_insert_default().ms = Some(ms);
        self.recorder
            .workers
            .fleet
            .report_success(leg.target.worker);
        let selection = Selection {
            label: None,
            worker: leg.name,
            policy: None,
            predicted_cached_tokens: leg.predicted_cached_tokens,
            announced_cached_tokens: leg.announced_cached_tokens,
            looked_up: true,
            fetches: false,
            basis: if leg.cache == CacheSource::Events {
                Basis::Events
            } else {
                Basis::Decisions
            },
            target: leg.target,
            sent: started,
            // The whole request's target is compared with the reply's own first token.
            slo: None,
        };
        match self
            .prefix_expectation
            .and_then(|expectation| expectation.of_prefill().sample(&selection, usage))
        {
            Some(sample) => drop(self.recorder.parity_monitor.observe(leg.target, sample)),
            None => self.record_incomparable(leg.target, started),
        }
    }

    /// Records a failed prefill. Frees both loads; the decode worker is chosen again.
    pub(crate) fn fail_prefill(&mut self, failure: &AttemptFailure) {
        let Some(open) = self.attempt.leg.take() else {
            return;
        };
        self.trace_leg(&open, failure.result, failure.status);
        let OpenLeg { leg, started, .. } = open;
        if let Some(kind) = failure.kind {
            self.report_worker_failure(leg.target, &leg.name, kind);
        }
        self.report_throttle(failure, leg.target, &leg.name);
        tracing::warn!(
            request_id = %self.request_id,
            worker = %leg.name,
            result = failure.result.as_str(),
            status = failure.status,
            "prefill failed"
        );
        if failure.class != Some(AttemptClass::C0) {
            self.record_incomparable(leg.target, started);
        }
        // With both legs under way, the decode leg was stopped before it answered.
        if let Some(open) = self.attempt.open.take() {
            self.record_incomparable(open.target, open.started);
            if self.attempt.lease.as_ref().is_some_and(Lease::is_sent) {
                let span = AttemptSpan {
                    name: ATTEMPT,
                    id: open.span,
                    started: open.started,
                };
                let ended = EndedAttempt {
                    target: open.target,
                    worker: &open.name,
                    result: AttemptResult::Cancelled,
                    status: None,
                };
                self.trace_attempt(span, &ended);
            }
        }
        if let Some(mut lease) = self.attempt.lease.take() {
            lease.fail_prefill(failure.attempt_end());
            lease.mark_unsent();
        }
        let note = self.attempt.prefill.get_or_insert_default();
        note.skipped = Some(PrefillSkip::PrefillFailed);
        note.ms = Some(self.recorder.clock.now().ms_since(started));
    }

    /// Ends the span of a prefill that no reply came of, if there is one.
    pub(super) fn end_leg(&mut self, result: AttemptResult) {
        if let Some(open) = self.attempt.leg.take() {
            self.trace_leg(&open, result, None);
        }
    }

    /// Records the span of a prefill that ends now.
    fn trace_leg(&mut self, open: &OpenLeg, result: AttemptResult, status: Option<u16>) {
        let span = AttemptSpan {
            name: PREFILL,
            id: open.span,
            started: open.started,
        };
        let ended = EndedAttempt {
            target: open.leg.target,
            worker: &open.leg.name,
            result,
            status,
        };
        self.trace_attempt(span, &ended);
    }

    /// Returns the handover for the decision after a failed prefill.
    pub(crate) fn without_prefill(&self) -> Handover {
        Handover::Not(self.attempt.prefill.clone().unwrap_or_default())
    }
}
