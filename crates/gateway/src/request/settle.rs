//! Stage 7: exactly one end for every request.
//!
//! A [`Settle`] is opened when a request's route is known and travels with it, at last inside the reply's body. Whatever
//! ends the request ends the `Settle`: dropping it frees the load, counts one outcome and completes the receipt. A
//! request whose end nobody announced is one whose client left.

use std::sync::Arc;

use dialect::{Chunk, ErrorCode, Usage};
use fleet::FailureKind;
use kv_blocks::{Moment, Target};
use routing::{
    Refusal,
    receipt::{
        Attempt, AttemptClass, AttemptResult, DecisionId, Hold, Outcome, OutcomeKind, PromptNote, Receipt, Timing,
        Verdict,
    },
};

use super::dispatch::Failure;
use crate::{
    Gateway,
    lease::Lease,
    metrics::{
        ClassResult, PolicyLabel, PolicyMethod, RouteLabel, RouteOutcome, Stage, Worker, WorkerReason, WorkerResult,
    },
    routes::Route,
};

/// The drop guard of one request.
#[derive(Debug)]
pub(crate) struct Settle {
    gateway: Arc<Gateway>,
    route: &'static Route,
    request_id: Arc<str>,
    received: Moment,
    id: DecisionId,
    about: Option<About>,
    verdict: Option<Verdict>,
    lease: Option<Lease>,
    attempts: Vec<Attempt>,
    open: Option<OpenAttempt>,
    timing: Timing,
    published: bool,
    status: Option<u16>,
    first_byte: Option<Moment>,
    streaming: bool,
    usage: Option<Usage>,
    finish_reason: Option<Arc<str>>,
    in_band_error: bool,
    end: Option<OutcomeKind>,
}

/// What is known of a request before anything is decided.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) model: Arc<str>,
    pub(crate) served_model: Option<Arc<str>>,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) stream: bool,
    pub(crate) priority: i32,
    pub(crate) prompt: PromptNote,
}

#[derive(Debug)]
struct OpenAttempt {
    target: Target,
    name: Arc<str>,
    started: Moment,
}

impl Settle {
    /// Opens the account of a request.
    pub(crate) fn open(gateway: &Arc<Gateway>, route: &'static Route, request_id: Arc<str>, received: Moment) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            route,
            request_id,
            received,
            id: gateway.decision_ids.next_id(),
            about: None,
            verdict: None,
            lease: None,
            attempts: Vec::new(),
            open: None,
            timing: Timing::default(),
            published: false,
            status: None,
            first_byte: None,
            streaming: false,
            usage: None,
            finish_reason: None,
            in_band_error: false,
            end: None,
        }
    }

    pub(crate) fn request_id(&self) -> &str {
        &self.request_id
    }

    pub(crate) fn id(&self) -> DecisionId {
        self.id
    }

    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// The router's own times, filled in stage by stage.
    pub(crate) fn timing(&mut self) -> &mut Timing {
        &mut self.timing
    }

    pub(crate) fn about(&mut self, about: About) {
        self.about = Some(about);
    }

    /// A decision was made; the load it counted is ours to free.
    pub(crate) fn placed(&mut self, decision: routing::Decision, lease: Lease) {
        let metrics = &self.gateway.metrics;
        let (policy, method) = (decision.policy.as_str(), decision.method.as_str());
        metrics.decisions.get_or_create(&PolicyMethod { policy, method }).inc();
        let took = (decision.lookup_us + decision.decide_us) / 1e6;
        metrics.decision.get_or_create(&PolicyLabel { policy }).observe(took);
        self.timing.lookup = decision.lookup_us;
        self.timing.decide = decision.decide_us;
        self.open = Some(OpenAttempt {
            target: lease.target(),
            name: Arc::clone(&decision.winner_name),
            started: self.gateway.clock.now(),
        });
        self.verdict = Some(Verdict::Decided(Box::new(decision)));
        self.lease = Some(lease);
    }

    /// Nobody can take the request. An earlier decision stays what the receipt shows.
    pub(crate) fn refused(&mut self, refusal: Refusal) {
        if self.verdict.is_none() {
            self.verdict = Some(Verdict::Refused(refusal));
        }
    }

    /// The attempt failed with nothing forwarded: its load is free.
    pub(crate) fn attempt_failed(&mut self, failure: &Failure) {
        self.lease = None;
        if let Some(kind) = failure.kind {
            self.worker_failed(kind);
        }
        self.close_attempt(failure.class, failure.result, failure.status);
    }

    /// The reply's head goes out: from here on nothing is tried again.
    pub(crate) fn committed(&mut self, status: u16, streaming: bool) {
        self.status = Some(status);
        self.first_byte = Some(self.gateway.clock.now());
        if let Some(lease) = &mut self.lease {
            lease.first_token();
            self.gateway.fleet.report_success(lease.target().worker);
        }
        if streaming {
            self.streaming = true;
            self.gateway.metrics.open_streams.inc();
        }
        self.timing.total = self.timing.accept
            + self.timing.render
            + self.timing.tokenize
            + self.timing.hash
            + self.timing.lookup
            + self.timing.decide;
        self.publish(None);
    }

    /// What one event, or the whole body, said about the reply.
    pub(crate) fn note(&mut self, chunk: &Chunk<'_>) {
        self.usage = chunk.usage.or(self.usage);
        if let Some(reason) = &chunk.finish_reason {
            self.finish_reason = Some(Arc::from(&**reason));
        }
        self.in_band_error |= chunk.error.is_some();
    }

    /// The reply reached the client whole.
    pub(crate) fn whole(&mut self) {
        let failed = self.in_band_error && self.status.is_some_and(|status| status < 400);
        self.end = Some(if failed { OutcomeKind::UpstreamError } else { OutcomeKind::Ok });
        self.close_attempt(None, AttemptResult::Ok, self.status);
    }

    /// A running reply was cut.
    pub(crate) fn cut(&mut self, code: ErrorCode, kind: FailureKind) {
        tracing::warn!(request_id = %self.request_id, code = code.as_str(), "reply cut");
        self.worker_failed(kind);
        self.end = Some(OutcomeKind::UpstreamError);
        self.close_attempt(Some(AttemptClass::C3), AttemptResult::MidStream, self.status);
        self.lease = None;
    }

    /// The client gets an error of ours in place of a reply.
    pub(crate) fn answered(&mut self, status: u16) {
        self.status = Some(status);
        self.end = Some(match status {
            429 | 503 => OutcomeKind::Shed,
            400..=499 => OutcomeKind::ClientError,
            _ if !self.attempts.is_empty() => OutcomeKind::UpstreamError,
            _ => OutcomeKind::RouterError,
        });
    }

    /// The worker's own reply is passed on whole, after attempts were used up.
    pub(crate) fn passed(&mut self, status: u16) {
        self.status = Some(status);
        self.end = Some(OutcomeKind::Ok);
    }

    fn worker_failed(&self, kind: FailureKind) {
        let Some(open) = &self.open else { return };
        self.gateway.fleet.report_failure(open.target.worker, kind);
        if matches!(kind, FailureKind::Refused) {
            self.gateway.pools.forget(open.target.worker);
        }
        let label = WorkerReason { worker: open.name.to_string(), reason: kind.as_str() };
        self.gateway.metrics.upstream_failures.get_or_create(&label).inc();
    }

    fn close_attempt(&mut self, class: Option<AttemptClass>, result: AttemptResult, status: Option<u16>) {
        let Some(open) = self.open.take() else { return };
        let label = ClassResult { class: class.map_or("", AttemptClass::as_str), result: result.as_str() };
        self.gateway.metrics.attempts.get_or_create(&label).inc();
        self.attempts.push(Attempt {
            n: u32::try_from(self.attempts.len()).unwrap_or(u32::MAX).saturating_add(1),
            target: open.target,
            name: open.name,
            class,
            result,
            status,
            ms: self.gateway.clock.now().ms_since(open.started),
        });
    }

    /// Puts the receipt into the ring, or completes the one that is there.
    fn publish(&mut self, outcome: Option<Outcome>) {
        if std::mem::replace(&mut self.published, true) {
            let attempts = std::mem::take(&mut self.attempts);
            self.gateway.ring.update(self.id, |receipt| {
                receipt.attempts = attempts;
                receipt.outcome = outcome;
            });
            return;
        }
        // A request that never came to a decision has nothing to explain.
        let (Some(about), Some(verdict)) = (self.about.take(), self.verdict.clone()) else { return };
        self.gateway.ring.push(Receipt {
            id: self.id,
            at_unix_ms: self.gateway.clock.unix_ms(),
            request_id: Arc::clone(&self.request_id),
            tenant: Arc::from("default"),
            dry_run: false,
            route: self.route.path,
            model: about.model,
            served_model: about.served_model,
            lora: about.lora,
            session: None,
            stream: about.stream,
            priority: about.priority,
            prompt: about.prompt,
            verdict,
            hold: Hold::default(),
            attempts: self.attempts.clone(),
            timing: self.timing,
            rewrites: Vec::new(),
            outcome,
        });
    }

    fn outcome(&self, kind: OutcomeKind, now: Moment) -> Outcome {
        Outcome {
            kind,
            status: self.status,
            ttft_ms: self.first_byte.map(|at| at.ms_since(self.received)),
            duration_ms: now.ms_since(self.received),
            prompt_tokens: self.usage.map(|usage| usage.prompt_tokens),
            completion_tokens: self.usage.map(|usage| usage.completion_tokens),
            cached_tokens: self.usage.and_then(|usage| usage.cached_tokens),
            finish_reason: self.finish_reason.clone(),
        }
    }

    fn count(&self, kind: OutcomeKind, now: Moment) {
        let metrics = &self.gateway.metrics;
        let route = self.route.path;
        metrics.requests.get_or_create(&RouteOutcome { route, outcome: kind.as_str() }).inc();
        metrics.request.get_or_create(&RouteLabel { route }).observe(now.since(self.received).as_secs_f64());
        for (stage, us) in [
            ("accept", self.timing.accept),
            ("render", self.timing.render),
            ("tokenize", self.timing.tokenize),
            ("lookup", self.timing.lookup),
            ("decide", self.timing.decide),
        ] {
            metrics.stage.get_or_create(&Stage { stage }).observe(us / 1e6);
        }
        let Some(Verdict::Decided(decision)) = &self.verdict else { return };
        let worker = || Worker { worker: decision.winner_name.to_string() };
        if let Some(at) = self.first_byte {
            metrics.ttft.get_or_create(&worker()).observe(at.since(self.received).as_secs_f64());
        }
        let predicted = decision.predicted_cached_tokens;
        metrics.predicted_cached_tokens.get_or_create(&worker()).inc_by(u64::from(predicted));
        let Some(usage) = self.usage else { return };
        metrics.prompt_tokens.get_or_create(&worker()).inc_by(u64::from(usage.prompt_tokens));
        if usage.prompt_tokens > 0 {
            metrics.overlap.observe((f64::from(predicted) / f64::from(usage.prompt_tokens)).min(1.0));
        }
        let Some(actual) = usage.cached_tokens else { return };
        metrics.actual_cached_tokens.get_or_create(&worker()).inc_by(u64::from(actual));
        let result = match predicted.cmp(&actual) {
            std::cmp::Ordering::Equal => "exact",
            std::cmp::Ordering::Greater => "over",
            std::cmp::Ordering::Less => "under",
        };
        let label = WorkerResult { worker: decision.winner_name.to_string(), result };
        metrics.parity_requests.get_or_create(&label).inc();
    }
}

impl Drop for Settle {
    fn drop(&mut self) {
        self.lease = None;
        let kind = self.end.unwrap_or(OutcomeKind::ClientGone);
        if kind == OutcomeKind::ClientGone {
            self.close_attempt(None, AttemptResult::ClientGone, self.status);
        }
        if self.streaming {
            self.gateway.metrics.open_streams.dec();
        }
        let now = self.gateway.clock.now();
        self.count(kind, now);
        let outcome = self.outcome(kind, now);
        self.publish(Some(outcome));
    }
}
