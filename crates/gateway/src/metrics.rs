//! The request path's metric families.
//!
//! Label sets are closed: routes, outcomes, classes and reasons come from enums, and worker names
//! are the first 1024 ever seen (`worker_labels`). Combinations of enums exist at 0 from the start,
//! so that their rates and ratios always have data; series with a worker's name begin with their
//! first sample.

use std::{sync::atomic::AtomicU64, time::Duration};

use dialect::{ErrorCode, Usage};
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

use routing::{
    PrefillNote, PrefillSkip,
    receipt::{AttemptClass, AttemptResult, OutcomeKind, PromptSource, RouterTiming},
};

use crate::{request::selection::Selection, routes::ROUTES, worker_labels::WorkerLabels};

/// Labels of a request counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteOutcome {
    route: &'static str,
    outcome: &'static str,
}

/// Labels of an attempt counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassResult {
    class: &'static str,
    result: &'static str,
}

/// One label: the reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Labels of a decision counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyMethod {
    policy: &'static str,
    method: &'static str,
}

/// One label: the policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabel {
    policy: &'static str,
}

/// Reasons of rejections that share the error code `overloaded`: too many bytes of bodies at once,
/// or too little memory.
pub(crate) const HELD_BYTES: &str = "held_bytes";
pub(crate) const MEMORY: &str = "memory";

/// Results of a prefill: handed over, or ended by its request.
const PREFILLED: &str = "ok";
const UNFINISHED: &str = "unfinished";

/// One label: the worker's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabel {
    worker: String,
}

/// Labels of a worker failure counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerReason {
    worker: String,
    reason: &'static str,
}

/// Labels of a parity counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerResult {
    worker: String,
    result: &'static str,
}

/// One label: the source of a prompt's identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

/// One label: the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// One label: the stage of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

/// One label: the route's path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: &'static str,
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

/// Cosines: a similarity hit is near 1.
fn similarity() -> Histogram {
    Histogram::new([
        0.5, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 1.0,
    ])
}

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// The facts that are counted when a request ends.
#[derive(Debug)]
pub(crate) struct RequestSummary<'a> {
    pub(crate) route: &'static str,
    pub(crate) kind: OutcomeKind,
    pub(crate) took: Duration,
    pub(crate) ttft: Option<Duration>,
    /// `None` when no decision was made: stages that did not run are not observed.
    pub(crate) timing: Option<&'a RouterTiming>,
    pub(crate) selection: Option<&'a Selection>,
    pub(crate) usage: Option<Usage>,
    /// `None` for an incomparable request; else its cached tokens, where they are known.
    pub(crate) judged: Option<Option<u32>>,
}

/// All families of the request path.
#[derive(Debug)]
pub(crate) struct Metrics {
    workers: WorkerLabels,
    requests: Family<RouteOutcome, Counter>,
    attempts: Family<ClassResult, Counter>,
    shed: Family<ReasonLabel, Counter>,
    decisions: Family<PolicyMethod, Counter>,
    pub(crate) panics: Counter,
    upstream_failures: Family<WorkerReason, Counter>,
    upstream_throttled: Family<WorkerLabel, Counter>,
    streams_incomplete: Family<WorkerLabel, Counter>,
    prompt_tokens: Family<WorkerLabel, Counter>,
    predicted_cached_tokens: Family<WorkerLabel, Counter>,
    actual_cached_tokens: Family<WorkerLabel, Counter>,
    parity_requests: Family<WorkerResult, Counter>,
    prompt_source: Family<SourceLabel, Counter>,
    prefill: Family<ResultLabel, Counter>,
    ttft: Seconds<WorkerLabel>,
    stage: Seconds<StageLabel>,
    decision: Seconds<PolicyLabel>,
    request: Seconds<RouteLabel>,
    queue_wait: Histogram,
    overlap: Histogram,
    similarity: Histogram,
    pub(crate) open_streams: Gauge,
    pub(crate) held_body_bytes: Gauge<i64, std::sync::atomic::AtomicI64>,
}

impl Metrics {
    /// Registers every family under its documented name (the encoder adds `_total` to counters).
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            workers: WorkerLabels::default(),
            requests: Family::default(),
            attempts: Family::default(),
            shed: Family::default(),
            decisions: Family::default(),
            panics: Counter::<u64, AtomicU64>::default(),
            upstream_failures: Family::default(),
            upstream_throttled: Family::default(),
            streams_incomplete: Family::default(),
            prompt_tokens: Family::default(),
            predicted_cached_tokens: Family::default(),
            actual_cached_tokens: Family::default(),
            parity_requests: Family::default(),
            prompt_source: Family::default(),
            prefill: Family::default(),
            ttft: Family::new_with_constructor(request_seconds),
            stage: Family::new_with_constructor(stage_seconds),
            decision: Family::new_with_constructor(stage_seconds),
            request: Family::new_with_constructor(request_seconds),
            queue_wait: request_seconds(),
            overlap: ratio(),
            similarity: similarity(),
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
            upstream_throttled "warmroute_upstream_throttled" "Requests that workers answered with 429";
            streams_incomplete "warmroute_streams_incomplete" "Streams that ended without saying that they were whole";
            prompt_tokens "warmroute_prompt_tokens" "Prompt tokens that workers reported";
            predicted_cached_tokens "warmroute_predicted_cached_tokens" "Cached tokens predicted at decision time";
            actual_cached_tokens "warmroute_actual_cached_tokens" "Cached tokens that workers reported";
            parity_requests "warmroute_parity_requests" "Predictions against what the worker reported";
            prompt_source "warmroute_prompt_source" "How the identity of prompts was found";
            prefill "warmroute_prefill" "Requests of models with prefill workers, by what became of the prefill";
            ttft "warmroute_ttft_seconds" "Time from accepting a request to its first byte from the worker";
            stage "warmroute_stage_seconds" "Time spent in a stage of the router";
            decision "warmroute_decision_seconds" "Time of one placement decision";
            request "warmroute_request_seconds" "Time from accepting a request to its end";
            queue_wait "warmroute_queue_wait_seconds" "Time that requests waited for a worker, of those that did";
            overlap "warmroute_overlap_ratio" "Share of the prompt predicted to be cached where it went";
            similarity "vllm_router_cache_similarity" "Cosine of question and kept question, where their meaning answered";
            open_streams "warmroute_open_streams" "Replies being relayed";
            held_body_bytes "warmroute_held_body_bytes" "Bytes of request bodies in memory";
        }
        metrics.start_at_zero();
        metrics
    }

    /// Records a placement decision that took `us` microseconds.
    pub(crate) fn record_decision(&self, policy: &'static str, method: &'static str, us: f64) {
        self.record_method(policy, method);
        self.decision
            .get_or_create(&PolicyLabel { policy })
            .observe(us / 1e6);
    }

    /// Records the method by which a request got its worker or its reply, without a decision time.
    pub(crate) fn record_method(&self, policy: &'static str, method: &'static str) {
        self.decisions
            .get_or_create(&PolicyMethod { policy, method })
            .inc();
    }

    /// Records a similarity hit with its cosine.
    pub(crate) fn record_similar_hit(&self, similarity: f64) {
        self.similarity.observe(similarity);
    }

    /// Records a request's wait for a worker.
    pub(crate) fn record_wait(&self, waited: Duration) {
        self.queue_wait.observe(waited.as_secs_f64());
    }

    /// Records the end of an attempt.
    pub(crate) fn record_attempt(&self, class: &'static str, result: &'static str) {
        self.attempts
            .get_or_create(&ClassResult { class, result })
            .inc();
    }

    /// Records a worker's failure.
    pub(crate) fn record_worker_failure(&self, worker: &str, reason: &'static str) {
        self.upstream_failures
            .get_or_create(&WorkerReason {
                worker: self.workers.label(worker),
                reason,
            })
            .inc();
    }

    /// Records a 429 of a worker.
    pub(crate) fn record_throttle(&self, worker: &str) {
        self.upstream_throttled
            .get_or_create(&self.labelled(worker))
            .inc();
    }

    /// Records a stream without its end marker.
    pub(crate) fn record_incomplete_stream(&self, worker: &str) {
        self.streams_incomplete
            .get_or_create(&self.labelled(worker))
            .inc();
    }

    fn labelled(&self, worker: &str) -> WorkerLabel {
        WorkerLabel {
            worker: self.workers.label(worker),
        }
    }

    /// Records a rejected request.
    pub(crate) fn record_rejection(&self, reason: &'static str) {
        self.shed.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Records the source of a prompt's identity.
    pub(crate) fn record_prompt_source(&self, source: &'static str) {
        self.prompt_source
            .get_or_create(&SourceLabel { source })
            .inc();
    }

    /// Records the end of a request with a prefill leg, planned or sent.
    pub(crate) fn record_prefill(&self, note: &PrefillNote) {
        let result = match (note.skipped, note.ms) {
            (Some(reason), _) => reason.as_str(),
            (None, Some(_)) => PREFILLED,
            (None, None) => UNFINISHED,
        };
        self.prefill.get_or_create(&ResultLabel { result }).inc();
    }

    /// Records the end of a request.
    pub(crate) fn record_request(&self, settled: &RequestSummary<'_>) {
        let route = settled.route;
        self.requests
            .get_or_create(&RouteOutcome {
                route,
                outcome: settled.kind.as_str(),
            })
            .inc();
        self.request
            .get_or_create(&RouteLabel { route })
            .observe(settled.took.as_secs_f64());
        if let Some(timing) = settled.timing {
            for (stage, us) in [
                ("accept", timing.accept),
                ("render", timing.render),
                ("tokenize", timing.tokenize),
                ("hash", timing.hash),
                ("lookup", timing.lookup),
                ("decide", timing.decide),
            ] {
                self.stage
                    .get_or_create(&StageLabel { stage })
                    .observe(us / 1e6);
            }
        }
        let Some(won) = settled.selection else { return };
        let worker = self.labelled(&won.worker);
        if let Some(ttft) = settled.ttft {
            self.ttft.get_or_create(&worker).observe(ttft.as_secs_f64());
        }
        let Some(usage) = settled.usage else { return };
        self.prompt_tokens
            .get_or_create(&worker)
            .inc_by(u64::from(usage.prompt_tokens));
        let predicted = won.predicted_cached_tokens;
        if usage.prompt_tokens > 0 {
            self.overlap
                .observe((f64::from(predicted) / f64::from(usage.prompt_tokens)).min(1.0));
        }
        // Counted only where both are known, so that the two totals are comparable.
        let judged = settled.judged.flatten();
        let Some(actual) = judged.or(usage.cached_tokens) else {
            return;
        };
        self.predicted_cached_tokens
            .get_or_create(&worker)
            .inc_by(u64::from(predicted));
        self.actual_cached_tokens
            .get_or_create(&worker)
            .inc_by(u64::from(actual));
        if judged.is_none() {
            return;
        }
        let result = match predicted.cmp(&actual) {
            std::cmp::Ordering::Equal => "exact",
            std::cmp::Ordering::Greater => "over",
            std::cmp::Ordering::Less => "under",
        };
        self.parity_requests
            .get_or_create(&WorkerResult {
                worker: worker.worker,
                result,
            })
            .inc();
    }

    fn start_at_zero(&self) {
        for result in PrefillSkip::ALL
            .map(PrefillSkip::as_str)
            .into_iter()
            .chain([PREFILLED, UNFINISHED])
        {
            drop(self.prefill.get_or_create(&ResultLabel { result }));
        }
        for reason in [
            ErrorCode::NoWorker,
            ErrorCode::Overloaded,
            ErrorCode::QueueFull,
            ErrorCode::QueueTimeout,
            ErrorCode::Draining,
        ] {
            drop(self.shed.get_or_create(&ReasonLabel {
                reason: reason.as_str(),
            }));
        }
        for reason in [HELD_BYTES, MEMORY] {
            drop(self.shed.get_or_create(&ReasonLabel { reason }));
        }
        for route in ROUTES {
            for outcome in OutcomeKind::ALL {
                drop(self.requests.get_or_create(&RouteOutcome {
                    route: route.path,
                    outcome: outcome.as_str(),
                }));
            }
        }
        use AttemptResult::{
            ConnectFailed, MidStream, Ok, Protocol, ResetBeforeHead, Status, Timeout,
        };
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
            drop(self.attempts.get_or_create(&ClassResult {
                class,
                result: result.as_str(),
            }));
        }
        for source in [
            PromptSource::Tokens,
            PromptSource::EngineTokenize,
            PromptSource::Given,
            PromptSource::TextPrefix,
            PromptSource::None,
        ] {
            drop(self.prompt_source.get_or_create(&SourceLabel {
                source: source.as_str(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tokenization_source_has_its_series_from_the_start() {
        let mut registry = Registry::default();
        let _metrics = Metrics::new(&mut registry);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        for source in ["tokens", "engine_tokenize", "given", "text_prefix", "none"] {
            let series = format!("warmroute_prompt_source_total{{source=\"{source}\"}} 0\n");
            assert!(page.contains(&series), "{series}");
        }
    }
    fn page(registry: &Registry) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, registry).unwrap();
        page
    }

    #[test]
    fn predictions_and_actual_figures_are_counted_only_where_both_are_known() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let selection = crate::request::selection::tests::selection("w1", 64);
        let usage = |cached_tokens| Usage {
            prompt_tokens: 128,
            completion_tokens: 1,
            cached_tokens,
        };
        for (usage, judged) in [
            (None, None),
            (Some(usage(None)), None),
            (Some(usage(Some(32))), None),
            (Some(usage(Some(64))), Some(Some(64))),
            (Some(usage(Some(80))), Some(Some(80))),
            (Some(usage(None)), Some(Some(0))),
        ] {
            metrics.record_request(&RequestSummary {
                route: "/v1/completions",
                kind: OutcomeKind::Ok,
                took: Duration::from_secs(1),
                ttft: None,
                timing: None,
                selection: Some(&selection),
                usage,
                judged,
            });
        }
        let page = page(&registry);
        for line in [
            "warmroute_prompt_tokens_total{worker=\"w1\"} 640",
            "warmroute_predicted_cached_tokens_total{worker=\"w1\"} 256",
            "warmroute_actual_cached_tokens_total{worker=\"w1\"} 176",
            "warmroute_parity_requests_total{worker=\"w1\",result=\"exact\"} 1",
            "warmroute_parity_requests_total{worker=\"w1\",result=\"under\"} 1",
            "warmroute_parity_requests_total{worker=\"w1\",result=\"over\"} 1",
        ] {
            assert!(page.lines().any(|there| there == line), "{line}\n{page}");
        }
    }

    #[test]
    fn beyond_the_first_workers_all_failures_and_tokens_share_one_series() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let most = crate::worker_labels::MOST_WORKERS;
        for number in 0..most + 2 {
            metrics.record_throttle(&format!("w{number}"));
            metrics.record_worker_failure(&format!("w{number}"), "refused");
        }
        let page = page(&registry);
        let series = |name: &str| page.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(series("warmroute_upstream_throttled_total{"), most + 1);
        assert_eq!(series("warmroute_upstream_failures_total{"), most + 1);
        assert!(page.contains("warmroute_upstream_throttled_total{worker=\"other\"} 2\n"));
    }
}
