//! The request guard: exactly one end for every request.
//!
//! A [`RequestGuard`] is opened when a request's route is known and travels with it, at last inside
//! the reply's body. However the request ends, the guard is dropped: that frees the load, counts
//! one outcome and completes the receipt. A guard that is dropped without a recorded end means that
//! the client disconnected.

mod attempts;
mod hedge;
mod log;
mod part_usages;
mod prefill;
mod reply;
mod trace;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use config::{CompatSection, LoggingSection};
use dialect::{ApiError, ErrorCode};
use fleet::{FailureKind, Fleet};
use kv_blocks::Moment;
use net::Clock;
use proxy::ConnectionPools;
use routing::{
    AttemptEnd, Refusal, ReportedWork, Router,
    receipt::{
        Attempt, AttemptClass, AttemptResult, DecisionId, DecisionIds, OutcomeKind, QueueWait,
        Receipt, ReceiptRing, RequestOutcome, RouterAnswer, RouterTiming,
    },
};
use tenants::{ReportedTokens, TenantPermit, TokenAmounts};

use self::{
    attempts::CurrentAttempt,
    log::{LogEnding, RequestLogLine},
    reply::ReplyRecord,
    trace::RequestTrace,
};
use super::receipt::{DecisionFacts, RequestFacts, RoutingNotes, Selection, tenant_name};
use crate::{
    cooldowns::Cooldowns,
    decision_log::DecisionLog,
    errors,
    metrics::{Metrics, RequestSummary},
    parity_monitor::{ParityMonitor, PrefixExpectation},
    response_affinity::ResponseAffinity,
    routes::{ErrorShape, Route},
    tracer::Tracer,
};

/// The destinations of a request's facts.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    pub(crate) receipts: ReceiptSinks,
    pub(crate) workers: WorkerReports,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) parity_monitor: Arc<ParityMonitor>,
    pub(crate) response_affinity: Arc<ResponseAffinity>,
    /// Requests whose guard is open.
    pub(crate) running: Arc<AtomicU64>,
    /// Headers that describe the routing in replies.
    pub(crate) compat: Arc<CompatSection>,
    pub(crate) logging: LoggingSection,
    /// `None`: no request has a trace.
    pub(crate) tracer: Option<Tracer>,
    pub(crate) clock: Clock,
}

/// Where receipts go.
#[derive(Clone, Debug)]
pub(crate) struct ReceiptSinks {
    pub(crate) ids: Arc<DecisionIds>,
    pub(crate) ring: Arc<ReceiptRing>,
    pub(crate) log: Option<Arc<DecisionLog>>,
}

/// The parts that learn how workers behave.
#[derive(Clone, Debug)]
pub(crate) struct WorkerReports {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) pools: ConnectionPools,
    pub(crate) cooldowns: Arc<Cooldowns>,
    pub(crate) router: Arc<Router>,
}

/// The drop guard of one request.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    recorder: Arc<Recorder>,
    route: &'static Route,
    request_id: Arc<str>,
    received: Moment,
    id: DecisionId,
    /// `None` for a request that computes no prompt.
    prefix_expectation: Option<PrefixExpectation>,
    selection: Option<Selection>,
    attempt: CurrentAttempt,
    draft: ReceiptDraft,
    reply: ReplyRecord,
    end: Option<OutcomeKind>,
    /// Set at the end: whether the reply was whole and no error.
    outcome: Option<Arc<OnceLock<bool>>>,
    /// The place of the request among those of its tenant, once it is admitted.
    tenant: Option<TenantPermit>,
}

/// The facts of the receipt, stage by stage.
#[derive(Debug, Default)]
struct ReceiptDraft {
    about: Option<RequestFacts>,
    answer: Option<RouterAnswer>,
    rewrites: Vec<&'static str>,
    notes: RoutingNotes,
    attempts: Vec<Attempt>,
    timing: RouterTiming,
    queue_wait: QueueWait,
    published: bool,
    logged: RequestLogLine,
    trace: RequestTrace,
}

impl RequestGuard {
    /// Opens the guard of a request. It is on the heap, as it moves with every future around it.
    pub(crate) fn open(
        recorder: &Arc<Recorder>,
        route: &'static Route,
        request_id: Arc<str>,
        received: Moment,
    ) -> Box<Self> {
        recorder.running.fetch_add(1, Ordering::Relaxed);
        Box::new(Self {
            recorder: Arc::clone(recorder),
            route,
            request_id,
            received,
            id: recorder.receipts.ids.next_id(),
            prefix_expectation: None,
            selection: None,
            attempt: CurrentAttempt::default(),
            draft: ReceiptDraft::default(),
            reply: ReplyRecord::default(),
            end: None,
            outcome: None,
            tenant: None,
        })
    }

    pub(crate) fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Holds the request's place among those of its tenant to the end of the request.
    pub(crate) fn set_tenant(&mut self, permit: Option<TenantPermit>) {
        self.tenant = permit;
    }

    /// Returns whether the reply tells of the worker and the decision.
    pub(crate) fn shows_decision(&self) -> bool {
        let tenant = self.tenant.as_ref().map(TenantPermit::tenant);
        self.reply_headers().expose_routing_headers
            && tenant.is_none_or(|tenant| tenant.sees_decisions())
    }

    /// Returns the name of the request's tenant.
    fn tenant_name(&self) -> Arc<str> {
        tenant_name(self.tenant.as_ref().map(|permit| &**permit.tenant()))
    }

    /// Takes a place among the streams of its tenant to the end of the request, which may have one
    /// already.
    pub(crate) fn begin_stream(&mut self) -> Result<(), ApiError> {
        let tenant = self.tenant.as_mut();
        let begun = tenant.map_or(Ok(()), TenantPermit::begin_stream);
        begun.map_err(|refusal| errors::refused_by_tenant(&refusal))
    }

    /// Returns whether the request's tenant has a limit of tokens per minute.
    pub(crate) fn limits_tokens(&self) -> bool {
        let tenant = self.tenant.as_ref().map(TenantPermit::tenant);
        tenant.is_some_and(|tenant| tenant.limits_tokens())
    }

    /// Reserves tokens of its tenant for the request; its end replaces them by those that it used.
    pub(crate) fn reserve_tokens(&mut self, amounts: TokenAmounts) -> Result<(), ApiError> {
        let limited = |permit: &&mut TenantPermit| permit.tenant().limits_tokens();
        let Some(permit) = self.tenant.as_mut().filter(limited) else {
            return Ok(());
        };
        let reserved = permit.reserve_tokens(amounts, self.recorder.clock.now());
        reserved.map_err(|refusal| errors::refused_by_tenant(&refusal))
    }

    /// Returns the tokens that the request used: those that the worker reported, else what was
    /// reserved for the prompt, and the estimated tokens of each event that came. Of a reply without
    /// events nobody knows the length: it used what was reserved.
    fn used_tokens(&self, kind: OutcomeKind, reserved: TokenAmounts) -> TokenAmounts {
        if let Some(usage) = self.reply.usage {
            // The counts of a reply that did not end are of its beginning, and some have none of the
            // output.
            let is_whole = kind == OutcomeKind::Ok && usage.completion_tokens > 0;
            let rest = if is_whole { 0 } else { self.reply.uncounted };
            return TokenAmounts {
                prompt: usage.prompt_tokens,
                output: usage.completion_tokens.saturating_add(rest),
            };
        }
        let may_have_computed = self.selection.is_some()
            && (self.reply.relaying || matches!(kind, OutcomeKind::Ok | OutcomeKind::ClientGone));
        if !may_have_computed {
            return TokenAmounts::default();
        }
        TokenAmounts {
            prompt: reserved.prompt,
            output: match self.reply.uncounted {
                0 => reserved.output,
                estimated => estimated,
            },
        }
    }

    /// Counts the end of the request for its tenant.
    fn count_for_tenant(&mut self, kind: OutcomeKind, now: Moment) {
        let reserved = self.tenant.as_ref().map(TenantPermit::reserved);
        let used = self.used_tokens(kind, reserved.unwrap_or_default());
        let Some(permit) = &mut self.tenant else {
            return;
        };
        permit.settle_tokens(used, now);
        let has_no_counts = self.reply.usage.is_none() && self.reply.uncounted == 0;
        if let Some(key) = self.reply.response.as_deref().copied()
            && kind == OutcomeKind::Ok
            && has_no_counts
            && permit.tenant().limits_tokens()
        {
            let reservations = &self.recorder.response_affinity.reservations;
            reservations.record(key, used, now);
        }
        if !matches!(kind, OutcomeKind::Ok | OutcomeKind::ClientGone) {
            permit.count_error();
        }
        if let Some(usage) = self.reply.usage {
            permit.count_tokens(ReportedTokens {
                prompt: usage.prompt_tokens,
                cached: usage.cached_tokens.unwrap_or_default(),
                completion: usage.completion_tokens,
            });
        }
        let (name, took) = (permit.tenant().name(), now.since(self.received));
        self.recorder.metrics.record_tenant_request(name, took);
    }

    /// Returns the form of the route's errors.
    pub(crate) fn error_shape(&self) -> ErrorShape {
        ErrorShape::of(self.route.path)
    }

    pub(crate) fn id(&self) -> DecisionId {
        self.id
    }

    /// Returns the last selection, once there is one.
    pub(crate) fn selection(&self) -> Option<&Selection> {
        self.selection.as_ref()
    }

    /// Returns the router's own times, filled in stage by stage.
    pub(crate) fn timing(&mut self) -> &mut RouterTiming {
        &mut self.draft.timing
    }

    pub(crate) fn set_request_facts(&mut self, about: RequestFacts) {
        let about = self.draft.notes.about(about);
        self.trace_facts(&about);
        self.draft.about = Some(about);
    }

    /// Records that the worker will look up the prompt in a prefix cache.
    pub(crate) fn set_prefix_expectation(&mut self, expectation: PrefixExpectation) {
        self.prefix_expectation = Some(expectation);
    }

    /// Records the request's wait for its decision.
    pub(crate) fn record_wait(&mut self, queue_wait: QueueWait) {
        if self.draft.queue_wait != queue_wait {
            self.draft.queue_wait = queue_wait;
            self.trace_wait(self.draft.queue_wait.held_ms);
        }
    }

    /// Records that no target can take the request. The receipt keeps an earlier decision.
    pub(crate) fn record_refusal(&mut self, refusal: Refusal) {
        if self.draft.answer.is_none() {
            self.draft.answer = Some(RouterAnswer::Refused(Box::new(refusal)));
        }
    }

    /// Records that a running reply was cut; `kind` is the worker's fault, if it has one.
    pub(crate) fn record_cut(&mut self, code: ErrorCode, kind: Option<FailureKind>) {
        tracing::warn!(request_id = %self.request_id, code = code.as_str(), "reply cut");
        if let Some(kind) = kind {
            self.record_blame(kind);
            self.set_attempt_end(AttemptEnd::BrokenOff);
        }
        self.end = Some(OutcomeKind::UpstreamError);
        self.close_attempt(
            Some(AttemptClass::C3),
            AttemptResult::MidStream,
            self.reply.status,
        );
        self.free_load();
    }

    /// Frees the load of the current attempt. Its tenant is charged with what the worker reported.
    fn free_load(&mut self) {
        let (lease, usage) = (self.attempt.lease.take(), self.own_usage());
        if let Some((lease, usage)) = lease.as_ref().zip(usage) {
            lease.record_work(ReportedWork {
                prompt_tokens: usage.prompt_tokens,
                cached_tokens: usage.cached_tokens,
                output_tokens: usage.completion_tokens,
                shows_decode_steps: self.shows_decode_steps(),
            });
        }
    }

    /// Puts the receipt into the ring, or completes the one in the ring.
    fn publish(&mut self, outcome: Option<RequestOutcome>) {
        if std::mem::replace(&mut self.draft.published, true) {
            let end = LogEnding {
                attempts: std::mem::take(&mut self.draft.attempts),
                prefill: self.attempt.prefill.take(),
                outcome,
            };
            self.log_end(&end);
            self.recorder
                .receipts
                .ring
                .update(self.id, |receipt| end.complete(receipt));
            return;
        }
        // A request that never came to a decision has nothing to explain.
        let (Some(about), Some(mut answer)) = (self.draft.about.take(), self.draft.answer.take())
        else {
            return;
        };
        if let RouterAnswer::Decided(decision) = &mut answer {
            decision.prefill.clone_from(&self.attempt.prefill);
        }
        let decided = DecisionFacts {
            id: self.id,
            at_unix_ms: self.recorder.clock.unix_ms(),
            request_id: Arc::clone(&self.request_id),
            tenant: self.tenant_name(),
            route: self.route.path,
            answer,
            queue_wait: self.draft.queue_wait.clone(),
            timing: self.draft.timing,
        };
        let (attempts, rewrites) = (self.draft.attempts.clone(), self.draft.rewrites.clone());
        let receipt = Receipt {
            attempts,
            rewrites,
            outcome,
            ..about.receipt(decided)
        };
        self.log_shown(&receipt);
        self.recorder.receipts.ring.push(receipt);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.free_load();
        let unannounced = || {
            if std::thread::panicking() {
                OutcomeKind::RouterError
            } else {
                OutcomeKind::ClientGone
            }
        };
        let kind = self.end.unwrap_or_else(unannounced);
        match kind {
            OutcomeKind::ClientGone => {
                self.end_leg(AttemptResult::ClientGone);
                self.end_hedge(AttemptResult::ClientGone);
                self.close_attempt(None, AttemptResult::ClientGone, self.reply.status)
            }
            OutcomeKind::RouterError => self.reply.status = self.reply.status.or(Some(500)),
            _ => {}
        }
        if self.reply.relaying {
            self.recorder.metrics.requests.open_streams.dec();
        }
        if let Some(good) = &self.outcome {
            let finished = !matches!(self.reply.finish_reason.as_deref(), Some("error" | "abort"));
            let _ = good.set(kind == OutcomeKind::Ok && finished);
        }
        let now = self.recorder.clock.now();
        let compared_tokens = self.record_prediction(kind);
        self.recorder.metrics.record_request(&RequestSummary {
            route: self.route.path,
            kind,
            took: now.since(self.received),
            ttft: self.reply.first_token.map(|at| at.since(self.received)),
            tpot: self.tpot(kind, now),
            timing: self.selection.is_some().then_some(&self.draft.timing),
            selection: self.selection.as_ref(),
            usage: self.own_usage(),
            compared_tokens,
        });
        self.count_for_tenant(kind, now);
        if let Some(note) = &self.attempt.prefill {
            self.recorder.metrics.record_prefill(note);
        }
        if self.recorder.logging.requests {
            tracing::info!(
                request_id = %self.request_id,
                route = self.route.path,
                status = self.reply.status,
                outcome = kind.as_str(),
                worker = self.selection.as_ref().map(|selection| &*selection.worker),
                ms = now.ms_since(self.received),
                "request"
            );
        }
        let outcome = self.outcome(kind, now);
        self.end_trace(&outcome, now);
        self.publish(Some(outcome));
        self.recorder.running.fetch_sub(1, Ordering::Relaxed);
    }
}
