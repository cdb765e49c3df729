//! Attempts in the request guard: the placement and the result of each, and its effect on the
//! worker and on parity.
//!
//! **Invariant**: an attempt that began ends exactly once, also beside a hedge.

use std::sync::Arc;

use fleet::FailureKind;
use kv_blocks::{Moment, Target};
use otlp::SpanId;
use parity::Basis;
use routing::{
    AttemptEnd, CacheSource, Decision, PrefillLeg, PrefillNote,
    receipt::{Attempt, AttemptClass, AttemptResult, OutcomeKind, PromptSource, RouterAnswer},
};

use super::{
    RequestGuard,
    trace::{ATTEMPT, AttemptSpan, EndedAttempt},
};
use crate::{
    lease::{Lease, PlacedAttempt},
    request::{attempt_failure::AttemptFailure, receipt::Selection},
};

/// The attempt under way, with its load.
#[derive(Debug, Default)]
pub(super) struct CurrentAttempt {
    pub(super) lease: Option<Lease>,
    pub(super) open: Option<OpenAttempt>,
    /// The result of the prefill, where a split was considered.
    pub(super) prefill: Option<PrefillNote>,
    /// The prefill under way.
    pub(super) leg: Option<OpenLeg>,
    /// The hedge under way.
    pub(super) hedge: Option<Box<OpenHedge>>,
}

/// An attempt under way.
#[derive(Debug)]
pub(super) struct OpenAttempt {
    pub(super) target: Target,
    pub(super) name: Arc<str>,
    pub(super) started: Moment,
    /// Its place in the request's trace, which its worker gets.
    pub(super) span: Option<SpanId>,
}

/// A prefill under way.
#[derive(Debug)]
pub(super) struct OpenLeg {
    pub(super) leg: PrefillLeg,
    pub(super) started: Moment,
    /// Its place in the request's trace, which its worker gets.
    pub(super) span: Option<SpanId>,
}

/// A hedge under way, beside the current attempt.
#[derive(Debug)]
pub(super) struct OpenHedge {
    pub(super) placed: PlacedAttempt,
    pub(super) since: Moment,
    pub(super) span: Option<SpanId>,
}

impl RequestGuard {
    /// Records a decision; this guard now frees its load. `leg`: another worker computes the
    /// prompt.
    pub(crate) fn record_placement(
        &mut self,
        decision: Box<Decision>,
        lease: Lease,
        leg: Option<PrefillLeg>,
    ) {
        self.trace_decision(&decision);
        self.place(decision, lease, leg);
    }

    /// Makes a placed attempt the current one.
    pub(super) fn place(&mut self, decision: Box<Decision>, lease: Lease, leg: Option<PrefillLeg>) {
        let policy = decision.policy.as_str();
        let us = decision.timing.lookup_us + decision.timing.decide_us;
        self.recorder
            .metrics
            .record_decision(policy, decision.method.as_str(), us);
        // A retried request pays for each decision.
        self.draft.timing.hash += decision.timing.hash_us;
        self.draft.timing.lookup += decision.timing.lookup_us;
        self.draft.timing.decide += decision.timing.decide_us;
        let (target, now) = (lease.target(), self.recorder.clock.now());
        self.attempt.open = Some(OpenAttempt {
            target,
            name: Arc::clone(&decision.winner.name),
            started: now,
            span: self.draft.trace.next_attempt(),
        });
        let by_events = decision
            .winning()
            .is_some_and(|row| row.cache_source == CacheSource::Events);
        self.selection = Some(Selection {
            worker: Arc::clone(&decision.winner.name),
            policy: Some(decision.policy),
            label: decision.label,
            predicted_cached_tokens: decision.winner.predicted_cached_tokens,
            announced_cached_tokens: decision.winner.announced_cached_tokens,
            looked_up: self.has_known_prompt(),
            fetches: decision.fetch().is_some(),
            basis: if by_events {
                Basis::Events
            } else {
                Basis::Decisions
            },
            target,
            sent: now,
            slo: decision.winner.slo.map(|slo| Box::new(slo.targets)),
        });
        self.attempt.prefill.clone_from(&decision.prefill);
        self.draft.answer = Some(RouterAnswer::Decided(decision));
        self.attempt.lease = Some(lease);
        self.draft.rewrites = self.draft.notes.rewrites().to_vec();
        self.attempt.leg = None;
        if let Some(leg) = leg {
            self.begin_prefill(leg);
        }
    }

    fn has_known_prompt(&self) -> bool {
        let about = self.draft.about.as_ref();
        about.is_some_and(|about| about.prompt.source != PromptSource::None)
    }

    /// Ends an attempt that failed with nothing forwarded; frees its load.
    pub(crate) fn fail_attempt(&mut self, failure: &AttemptFailure) {
        if let Some(status) = failure.status {
            self.recheck_model(status);
        }
        if let Some(lease) = self.attempt.lease.take() {
            lease.end_with(failure.attempt_end());
        }
        if let Some(open) = self.attempt.open.take() {
            self.failed(open, failure);
        }
    }

    /// Records the result with which the current attempt will end.
    pub(super) fn set_attempt_end(&mut self, end: AttemptEnd) {
        if let Some(lease) = &mut self.attempt.lease {
            lease.set_end(end);
        }
    }

    /// Records a failed attempt.
    pub(super) fn failed(&mut self, attempt: OpenAttempt, failure: &AttemptFailure) {
        if let Some(kind) = failure.kind {
            self.report_worker_failure(attempt.target, &attempt.name, kind);
        }
        self.report_throttle(failure, attempt.target, &attempt.name);
        self.finish_attempt(attempt, failure.class, failure.result, failure.status);
    }

    /// Reports a fault of the current worker.
    pub(super) fn record_blame(&self, kind: FailureKind) {
        if let Some(open) = &self.attempt.open {
            self.report_worker_failure(open.target, &open.name, kind);
        }
    }

    pub(super) fn report_worker_failure(&self, target: Target, name: &str, kind: FailureKind) {
        // Counted at its source: the worker is not at fault.
        if kind == FailureKind::Local {
            return;
        }
        self.recorder
            .workers
            .fleet
            .report_failure(target.worker, kind);
        if kind == FailureKind::Refused {
            self.recorder.workers.pools.close_worker(target.worker);
        }
        self.recorder
            .metrics
            .record_worker_failure(name, kind.as_str());
        if kind == FailureKind::Incomplete {
            self.recorder.metrics.record_incomplete_stream(name);
        }
    }

    /// Records a 429. The worker is healthy; others are preferred for the time of its
    /// `Retry-After`.
    pub(super) fn report_throttle(&self, failure: &AttemptFailure, target: Target, name: &str) {
        if failure.status != Some(429) {
            return;
        }
        self.recorder.metrics.record_throttle(name);
        if let Some(wait) = failure.wait.filter(|wait| !wait.is_zero()) {
            self.recorder.workers.cooldowns.record(
                target.worker,
                name,
                self.recorder.clock.now(),
                wait,
            );
        }
    }

    /// Ends the open attempt, if there is one.
    pub(super) fn close_attempt(
        &mut self,
        class: Option<AttemptClass>,
        result: AttemptResult,
        status: Option<u16>,
    ) {
        if let Some(open) = self.attempt.open.take() {
            self.finish_attempt(open, class, result, status);
        }
    }

    /// Records the result of an attempt.
    pub(super) fn finish_attempt(
        &mut self,
        attempt: OpenAttempt,
        class: Option<AttemptClass>,
        result: AttemptResult,
        status: Option<u16>,
    ) {
        let OpenAttempt {
            target,
            name,
            started,
            span,
        } = attempt;
        self.recorder
            .metrics
            .record_attempt(class.map_or("", AttemptClass::as_str), result.as_str());
        // A whole reply may still be compared, and the engine saw nothing of an attempt of class
        // C0.
        if result != AttemptResult::Ok && class != Some(AttemptClass::C0) {
            self.record_incomparable(target, started);
        }
        let span = AttemptSpan {
            name: ATTEMPT,
            id: span,
            started,
        };
        let ended = EndedAttempt {
            target,
            worker: &name,
            result,
            status,
        };
        self.trace_attempt(span, &ended);
        self.draft.attempts.push(Attempt {
            n: u32::try_from(self.draft.attempts.len())
                .unwrap_or(u32::MAX)
                .saturating_add(1),
            target,
            name,
            class,
            result,
            status,
            ms: self.recorder.clock.now().ms_since(started),
        });
    }

    /// Records that the engine may have looked up the prompt, without a comparable result.
    pub(super) fn record_incomparable(&self, target: Target, sent: Moment) {
        let Some(expectation) = self.prefix_expectation else {
            return;
        };
        let until = self
            .reply
            .first_token
            .unwrap_or_else(|| self.recorder.clock.now());
        self.recorder
            .parity_monitor
            .record_incomparable(target, expectation.incomparable(sent, until));
    }

    /// Submits the prediction and its result to parity. Returns `None` if they cannot be compared,
    /// else the cached tokens, where they are known.
    pub(super) fn record_prediction(&self, kind: OutcomeKind) -> Option<Option<u32>> {
        let selection = self.selection.as_ref()?;
        // After a remote prefill the worker's own cache had no part in the prompt.
        let own = kind == OutcomeKind::Ok && !self.has_remote_prefill();
        let sample = self
            .prefix_expectation
            .filter(|_| own)
            .and_then(|it| it.sample(selection, self.reply.usage));
        // Failed attempts are already submitted.
        if sample.is_none()
            && self
                .draft
                .attempts
                .last()
                .is_some_and(|last| last.result == AttemptResult::Ok)
        {
            self.record_incomparable(selection.target, selection.sent);
        }
        sample.map(|sample| {
            self.recorder
                .parity_monitor
                .observe(selection.target, sample)
        })
    }
}
