//! The request path's own metric families.
//!
//! Label sets are closed: routes, outcomes, classes and reasons come from enums, and worker names from the fleet, which
//! bounds them. Every combination known beforehand exists at 0 from the start, so rates and ratios always give data.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use routing::receipt::{AttemptClass, AttemptResult, OutcomeKind, PromptSource};

use crate::routes::ROUTES;

/// Labels of a request counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RouteOutcome {
    pub(crate) route: &'static str,
    pub(crate) outcome: &'static str,
}

/// Labels of an attempt counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ClassResult {
    pub(crate) class: &'static str,
    pub(crate) result: &'static str,
}

/// One label: why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reason {
    pub(crate) reason: &'static str,
}

/// Labels of a decision counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PolicyMethod {
    pub(crate) policy: &'static str,
    pub(crate) method: &'static str,
}

/// One label: the policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PolicyLabel {
    pub(crate) policy: &'static str,
}

/// One label: the worker's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Worker {
    pub(crate) worker: String,
}

/// Labels of a worker's failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WorkerReason {
    pub(crate) worker: String,
    pub(crate) reason: &'static str,
}

/// Labels of a parity counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WorkerResult {
    pub(crate) worker: String,
    pub(crate) result: &'static str,
}

/// One label: where the identity of a prompt came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Source {
    pub(crate) source: &'static str,
}

/// One label: the stage of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Stage {
    pub(crate) stage: &'static str,
}

/// One label: the route's path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RouteLabel {
    pub(crate) route: &'static str,
}

/// Seconds, 0.1 ms to about 200 s: first tokens and whole requests.
fn request_seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.0, 22))
}

/// Seconds, 0.5 us to about 16 ms: work inside the router.
fn stage_seconds() -> Histogram {
    Histogram::new(exponential_buckets(5e-7, 2.0, 16))
}

fn ratio() -> Histogram {
    Histogram::new((0..=10).map(|tenth| f64::from(tenth) / 10.0))
}

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// All families of the request path.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) requests: Family<RouteOutcome, Counter>,
    pub(crate) attempts: Family<ClassResult, Counter>,
    pub(crate) shed: Family<Reason, Counter>,
    pub(crate) decisions: Family<PolicyMethod, Counter>,
    pub(crate) panics: Counter,
    pub(crate) upstream_failures: Family<WorkerReason, Counter>,
    pub(crate) prompt_tokens: Family<Worker, Counter>,
    pub(crate) predicted_cached_tokens: Family<Worker, Counter>,
    pub(crate) actual_cached_tokens: Family<Worker, Counter>,
    pub(crate) parity_requests: Family<WorkerResult, Counter>,
    pub(crate) prompt_source: Family<Source, Counter>,
    pub(crate) ttft: Seconds<Worker>,
    pub(crate) stage: Seconds<Stage>,
    pub(crate) decision: Seconds<PolicyLabel>,
    pub(crate) request: Seconds<RouteLabel>,
    pub(crate) overlap: Histogram,
    pub(crate) open_streams: Gauge,
    pub(crate) held_body_bytes: Gauge<i64, std::sync::atomic::AtomicI64>,
}

impl Metrics {
    /// Registers every family under its documented name (the encoder adds `_total` to counters).
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            attempts: Family::default(),
            shed: Family::default(),
            decisions: Family::default(),
            panics: Counter::<u64, AtomicU64>::default(),
            upstream_failures: Family::default(),
            prompt_tokens: Family::default(),
            predicted_cached_tokens: Family::default(),
            actual_cached_tokens: Family::default(),
            parity_requests: Family::default(),
            prompt_source: Family::default(),
            ttft: Family::new_with_constructor(request_seconds),
            stage: Family::new_with_constructor(stage_seconds),
            decision: Family::new_with_constructor(stage_seconds),
            request: Family::new_with_constructor(request_seconds),
            overlap: ratio(),
            open_streams: Gauge::default(),
            held_body_bytes: Gauge::default(),
        };
        macro_rules! register {
            ($($field:ident $name:literal $help:literal;)*) => {
                $(registry.register($name, $help, metrics.$field.clone());)*
            };
        }
        register! {
            requests "warmroute_requests" "Requests by route and outcome";
            attempts "warmroute_attempts" "Attempts at workers by retry class and result";
            shed "warmroute_shed" "Requests refused for want of room";
            decisions "warmroute_decisions" "Placement decisions";
            panics "warmroute_panics" "Requests that ended in a panic";
            upstream_failures "warmroute_upstream_failures" "Failures of workers as requests saw them";
            prompt_tokens "warmroute_prompt_tokens" "Prompt tokens that workers reported";
            predicted_cached_tokens "warmroute_predicted_cached_tokens" "Cached tokens predicted at decision time";
            actual_cached_tokens "warmroute_actual_cached_tokens" "Cached tokens that workers reported";
            parity_requests "warmroute_parity_requests" "Predictions against what the worker reported";
            prompt_source "warmroute_prompt_source" "How the identity of prompts was found";
            ttft "warmroute_ttft_seconds" "Time from accepting a request to its first byte from the worker";
            stage "warmroute_stage_seconds" "Time spent in a stage of the router";
            decision "warmroute_decision_seconds" "Time of one placement decision";
            request "warmroute_request_seconds" "Time from accepting a request to its end";
            overlap "warmroute_overlap_ratio" "Share of the prompt predicted to be cached where it went";
            open_streams "warmroute_open_streams" "Replies being relayed";
            held_body_bytes "warmroute_held_body_bytes" "Bytes of request bodies in memory";
        }
        metrics.start_at_zero();
        metrics
    }

    fn start_at_zero(&self) {
        for route in ROUTES {
            for outcome in OutcomeKind::ALL {
                drop(self.requests.get_or_create(&RouteOutcome { route: route.path, outcome: outcome.as_str() }));
            }
        }
        use AttemptResult::{ConnectFailed, MidStream, Ok, Protocol, ResetBeforeHead, Status, Timeout};
        for (class, result) in [
            ("", Ok),
            ("", Timeout),
            ("", Status),
            (AttemptClass::C0.as_str(), ConnectFailed),
            (AttemptClass::C1.as_str(), ResetBeforeHead),
            (AttemptClass::C1.as_str(), Protocol),
            (AttemptClass::C2.as_str(), Status),
            (AttemptClass::C3.as_str(), MidStream),
        ] {
            drop(self.attempts.get_or_create(&ClassResult { class, result: result.as_str() }));
        }
        for source in [PromptSource::Tokens, PromptSource::Given, PromptSource::TextPrefix, PromptSource::None] {
            drop(self.prompt_source.get_or_create(&Source { source: source.as_str() }));
        }
    }
}
