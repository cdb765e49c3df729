//! The trace in the request guard: the spans of a request, from those of its stages to its own.
//!
//! Names of spans and attributes are those of `docs/tracing.md`. No span has a text of the prompt or
//! the reply.

use std::time::Duration;

use fleet::WorkerView;
use http::HeaderMap;
use kv_blocks::{Moment, Target};
use net::Address;
use otlp::{AttributeValue, Attributes, Span, SpanContext, SpanEvent, SpanId, SpanKind};
use routing::{
    Decision,
    receipt::{AttemptResult, OutcomeKind, RequestOutcome},
};
use tenants::TenantPermit;

use super::RequestGuard;
use crate::{
    request::receipt::RequestFacts,
    routes::{Route, RouteHandler},
    tracer::{TracePosition, Tracer},
};

/// Most spans below that of a request; a request with more has none for the later ones.
const MOST_CHILDREN: usize = 64;

/// The trace of a request.
#[derive(Debug, Default)]
pub(super) enum RequestTrace {
    /// Nothing is recorded, and workers get the client's header.
    #[default]
    Off,
    /// Nothing is recorded. Workers are told so: the decision is one for the whole trace.
    Unsampled(SpanContext),
    /// Spans are recorded.
    Sampled(Box<SampledTrace>),
}

/// A trace that is recorded: the span of the request so far, and the spans below it.
#[derive(Debug)]
pub(super) struct SampledTrace {
    tracer: Tracer,
    position: TracePosition,
    attributes: Attributes,
    events: Vec<SpanEvent>,
    children: Vec<Span>,
    attempts: u32,
    /// Set once a reply is relayed.
    relay_start: Option<Moment>,
}

/// The span of an attempt, which its worker continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptSpan {
    pub(super) name: &'static str,
    pub(super) id: Option<SpanId>,
    pub(super) started: Moment,
}

/// The end of an attempt, as its span shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedAttempt<'a> {
    pub(super) target: Target,
    pub(super) worker: &'a str,
    pub(super) result: AttemptResult,
    pub(super) status: Option<u16>,
}

/// Names of attempts' spans.
pub(super) const ATTEMPT: &str = "attempt";
pub(super) const PREFILL: &str = "prefill";

impl RequestTrace {
    fn sampled(&mut self) -> Option<&mut SampledTrace> {
        match self {
            Self::Sampled(trace) => Some(trace),
            Self::Off | Self::Unsampled(_) => None,
        }
    }

    /// Returns the id of an attempt's span that begins now; `None`: its worker gets the client's.
    pub(super) fn next_attempt(&self) -> Option<SpanId> {
        match self {
            Self::Off => None,
            Self::Unsampled(context) => Some(context.span),
            Self::Sampled(trace) => Some(trace.tracer.next_span()),
        }
    }

    /// Returns the context of an attempt's span.
    pub(super) fn context(&self, span: Option<SpanId>) -> Option<SpanContext> {
        match self {
            Self::Off => None,
            Self::Unsampled(context) => Some(context.with_span(span?)),
            Self::Sampled(trace) => Some(trace.position.span.with_span(span?)),
        }
    }
}

impl SampledTrace {
    /// Adds a span below that of the request.
    fn push(
        &mut self,
        name: &'static str,
        kind: SpanKind,
        time: (Moment, Moment),
    ) -> Option<&mut Span> {
        if self.children.len() == MOST_CHILDREN {
            return None;
        }
        let (start, end) = time;
        self.children.push(Span {
            context: self.position.span.with_span(self.tracer.next_span()),
            parent: Some(self.position.span.span),
            name: name.into(),
            kind,
            start,
            end,
            attributes: Attributes::default(),
            events: Vec::new(),
            failed: false,
        });
        self.children.last_mut()
    }
}

impl RequestGuard {
    /// Begins or continues the request's trace, where traces are exported; probes have none.
    pub(crate) fn begin_trace(&mut self, headers: &mut HeaderMap) {
        let Some(tracer) = &self.recorder.tracer else {
            return;
        };
        if self.route.scope.is_none() {
            return;
        }
        self.draft.trace = match tracer.position(headers) {
            None => RequestTrace::Off,
            Some(TracePosition { span, .. }) if !span.sampled => RequestTrace::Unsampled(span),
            Some(position) => RequestTrace::Sampled(Box::new(SampledTrace {
                tracer: tracer.clone(),
                position,
                attributes: Attributes::default(),
                events: Vec::new(),
                children: Vec::new(),
                attempts: 0,
                relay_start: None,
            })),
        };
    }

    /// Returns the time, where a stage that begins now will have a span.
    pub(crate) fn stage_start(&self) -> Option<Moment> {
        let is_sampled = matches!(self.draft.trace, RequestTrace::Sampled(_));
        is_sampled.then(|| self.recorder.clock.now())
    }

    /// Records the span of a stage that ends now.
    pub(crate) fn trace_stage(&mut self, name: &'static str, start: Option<Moment>) {
        if let (Some(trace), Some(start)) = (self.draft.trace.sampled(), start) {
            trace.push(name, SpanKind::Internal, (start, self.recorder.clock.now()));
        }
    }

    /// Records what is known of the request before its decision.
    pub(super) fn trace_facts(&mut self, about: &RequestFacts) {
        let Some(trace) = self.draft.trace.sampled() else {
            return;
        };
        let attributes = &mut trace.attributes;
        attributes.add("gen_ai.request.model", &*about.model);
        attributes.add_some("warmroute.served_model", about.served_model.as_deref());
        attributes.add("warmroute.prompt.source", about.prompt.source.as_str());
        attributes.add("warmroute.prompt.tokens", about.prompt.tokens);
    }

    /// Records a wait in the queue that ends now.
    pub(super) fn trace_wait(&mut self, ms: f64) {
        let Some(trace) = self.draft.trace.sampled().filter(|_| ms > 0.0) else {
            return;
        };
        let now = self.recorder.clock.now();
        trace.push("queue", SpanKind::Internal, (before(now, ms), now));
    }

    /// Records a decision that ends now.
    pub(super) fn trace_decision(&mut self, decision: &Decision) {
        let Some(trace) = self.draft.trace.sampled() else {
            return;
        };
        let now = self.recorder.clock.now();
        let timing = decision.timing;
        let ms = (timing.hash_us + timing.lookup_us + timing.decide_us) / 1e3;
        trace.push("decide", SpanKind::Internal, (before(now, ms), now));
        let winner = &decision.winner;
        let mut attributes = Attributes::default();
        attributes.add("warmroute.policy", decision.policy.as_str());
        attributes.add("warmroute.method", decision.method.as_str());
        attributes.add("warmroute.worker", &*winner.name);
        attributes.add("warmroute.dp_rank", winner.target.rank.0);
        attributes.add(
            "warmroute.predicted_cached_tokens",
            winner.predicted_cached_tokens,
        );
        if trace.events.len() < MOST_CHILDREN {
            trace.events.push(SpanEvent {
                name: "decision",
                at: now,
                attributes,
            });
        }
    }

    /// Returns the context that the worker of the current attempt gets.
    pub(in crate::request) fn attempt_context(&self) -> Option<SpanContext> {
        self.draft.trace.context(self.attempt.open.as_ref()?.span)
    }

    /// Returns the context that the worker of the prefill gets.
    pub(in crate::request) fn prefill_context(&self) -> Option<SpanContext> {
        self.draft.trace.context(self.attempt.leg.as_ref()?.span)
    }

    /// Records the span of an attempt that ends now.
    pub(super) fn trace_attempt(&mut self, span: AttemptSpan, ended: &EndedAttempt<'_>) {
        let (Some(trace), Some(id)) = (self.draft.trace.sampled(), span.id) else {
            return;
        };
        let snapshot = self.recorder.workers.fleet.snapshot();
        let now = self.recorder.clock.now();
        let resends = trace.attempts;
        trace.attempts += u32::from(span.name == ATTEMPT);
        let Some(recorded) = trace.push(span.name, SpanKind::Client, (span.started, now)) else {
            return;
        };
        recorded.context.span = id;
        recorded.failed = is_failure(ended.result);
        let attributes = &mut recorded.attributes;
        attributes.add("http.request.method", self.route.method.as_str());
        attributes.add_some("http.response.status_code", ended.status);
        let worker = snapshot.worker(ended.target.worker);
        add_address(attributes, worker.map(AsRef::as_ref));
        if span.name == ATTEMPT && resends > 0 {
            attributes.add("http.request.resend_count", resends);
        }
        attributes.add("warmroute.worker", ended.worker);
        attributes.add("warmroute.dp_rank", ended.target.rank.0);
        if ended.result != AttemptResult::Ok {
            attributes.add("warmroute.result", ended.result.as_str());
        }
        if recorded.failed {
            recorded.attributes.add("error.type", ended.result.as_str());
        }
    }

    /// Records that the worker's reply is relayed from now on.
    pub(super) fn trace_relay(&mut self) {
        if let Some(trace) = self.draft.trace.sampled() {
            trace.relay_start = Some(self.recorder.clock.now());
        }
    }

    /// Ends the trace: submits the spans of the request.
    pub(super) fn end_trace(&mut self, outcome: &RequestOutcome, now: Moment) {
        let RequestTrace::Sampled(mut trace) = std::mem::take(&mut self.draft.trace) else {
            return;
        };
        if let Some(start) = trace.relay_start {
            trace.push("relay", SpanKind::Internal, (start, now));
        }
        let SampledTrace {
            tracer,
            position,
            mut attributes,
            events,
            children: mut spans,
            ..
        } = *trace;
        add_route(&mut attributes, self.route);
        add_outcome(&mut attributes, outcome);
        attributes.add("warmroute.request_id", &*self.request_id);
        let tenant = self.tenant.as_ref().map(TenantPermit::tenant);
        attributes.add_some("warmroute.tenant", tenant.map(|tenant| &**tenant.name()));
        if self.selection.is_some() {
            attributes.add("warmroute.decision_id", &*self.id.to_string());
        }
        spans.push(Span {
            context: position.span,
            parent: position.parent,
            name: format!("{} {}", self.route.method, self.route.path).into(),
            kind: SpanKind::Server,
            start: self.received,
            end: now,
            attributes,
            events,
            failed: has_server_error(outcome),
        });
        tracer.queue.submit(spans);
    }
}

/// Returns the moment this long before another.
fn before(moment: Moment, ms: f64) -> Moment {
    moment - Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}

/// Returns whether an attempt failed; one that was given up is no failure of its worker.
fn is_failure(result: AttemptResult) -> bool {
    !matches!(
        result,
        AttemptResult::Ok | AttemptResult::Cancelled | AttemptResult::ClientGone
    )
}

fn has_server_error(outcome: &RequestOutcome) -> bool {
    outcome.status.is_some_and(|status| status >= 500)
        || matches!(
            outcome.kind,
            OutcomeKind::UpstreamError | OutcomeKind::RouterError
        )
}

/// Adds where a worker listens; one that is gone has no address.
fn add_address(attributes: &mut Attributes, worker: Option<&WorkerView>) {
    match worker.map(|worker| worker.connection.url.address()) {
        Some(Address::Tcp { host, port }) => {
            attributes.add("server.address", &*host);
            attributes.add("server.port", port);
        }
        Some(Address::Unix(path)) => {
            attributes.add("server.address", &*path.to_string_lossy());
        }
        None => {}
    }
}

fn add_route(attributes: &mut Attributes, route: &Route) {
    attributes.add("http.request.method", route.method.as_str());
    attributes.add("http.route", route.path);
    attributes.add_some("gen_ai.operation.name", operation(route));
}

/// Returns the operation of a route, where the conventions for generative models have a name for
/// it.
fn operation(route: &Route) -> Option<&'static str> {
    use dialect::Dialect;
    let RouteHandler::Generate(dialect) = route.endpoint else {
        return None;
    };
    match dialect {
        Dialect::Chat | Dialect::ChatBatch | Dialect::Messages | Dialect::Responses => Some("chat"),
        Dialect::Completions | Dialect::TokenIds | Dialect::SglangGenerate => {
            Some("text_completion")
        }
        Dialect::Embeddings if route.path == "/v1/embeddings" => Some("embeddings"),
        Dialect::Embeddings | Dialect::Rerank | Dialect::Score => None,
    }
}

fn add_outcome(attributes: &mut Attributes, outcome: &RequestOutcome) {
    attributes.add_some("http.response.status_code", outcome.status);
    attributes.add_some("gen_ai.usage.input_tokens", outcome.prompt_tokens);
    attributes.add_some("gen_ai.usage.output_tokens", outcome.completion_tokens);
    attributes.add_some(
        "gen_ai.usage.cache_read.input_tokens",
        outcome.cached_tokens,
    );
    let reason = outcome.finish_reason.as_deref();
    attributes.add_some(
        "gen_ai.response.finish_reasons",
        reason.map(AttributeValue::text_list),
    );
    let seconds = outcome.ttft_ms.map(|ms| ms / 1e3);
    attributes.add_some("gen_ai.response.time_to_first_chunk", seconds);
    attributes.add("warmroute.outcome", outcome.kind.as_str());
    if has_server_error(outcome) {
        attributes.add("error.type", outcome.kind.as_str());
    }
}

#[cfg(test)]
mod tests;
