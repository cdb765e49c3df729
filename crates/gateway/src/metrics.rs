//! The request path's metric families.
//!
//! Label sets are closed: routes, outcomes, classes and reasons come from enums, and worker names
//! and tenants' names are the first 1024 ever seen (`name_labels`). Combinations of enums exist at 0 from the start,
//! so that their rates and ratios always have data; series with a worker's name begin with their
//! first sample.

use std::{cmp::Ordering, hash::Hash, sync::Arc, time::Duration};

use dialect::{ErrorCode, Usage};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use routing::{
    PrefillNote, PrefillSkip,
    receipt::{AttemptClass, AttemptResult, OutcomeKind, PromptSource, RouterTiming},
};

use crate::{
    indexed_family::IndexedFamily, name_labels::NameLabels, request::receipt::Selection,
    routes::ROUTES,
};

/// Labels of enums: each name with its value.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Reasons of rejections that share the error code `overloaded`: too many bytes of bodies at once,
/// too little memory, or a latency target that no worker can meet.
pub(crate) const BUFFERED_BYTES: &str = "held_bytes";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const SLO: &str = "slo";

/// Labels of latency targets and their results.
const TTFT: &str = "ttft";
const TPOT: &str = "tpot";
const MET: &str = "met";
const MISSED: &str = "missed";

/// Results of a prefill: handed over, or ended by its request.
const PREFILLED: &str = "ok";
const UNFINISHED: &str = "unfinished";

/// One label: the worker's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WorkerLabel {
    worker: Arc<str>,
}

/// One label: the tenant's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TenantLabel {
    tenant: Arc<str>,
}

/// Labels of a worker failure counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WorkerReason {
    worker: Arc<str>,
    reason: &'static str,
}

/// Labels of a parity counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WorkerResult {
    worker: Arc<str>,
    result: &'static str,
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

type Seconds<L> = IndexedFamily<L, Histogram, fn() -> Histogram>;

/// The facts that are counted when a request ends.
#[derive(Debug)]
pub(crate) struct RequestSummary<'a> {
    pub(crate) route: &'static str,
    pub(crate) kind: OutcomeKind,
    pub(crate) took: Duration,
    pub(crate) ttft: Option<Duration>,
    /// Mean time between the later tokens of a whole stream.
    pub(crate) tpot: Option<Duration>,
    /// `None` when no decision was made: stages that did not run are not observed.
    pub(crate) timing: Option<&'a RouterTiming>,
    pub(crate) selection: Option<&'a Selection>,
    pub(crate) usage: Option<Usage>,
    /// `None` for an incomparable request; else its cached tokens, where they are known.
    pub(crate) compared_tokens: Option<Option<u32>>,
}

/// Declares a group of families, each with its first value, its documented name (the encoder adds
/// `_total` to counters) and its help text.
macro_rules! families {
    (
        $(#[$meta:meta])*
        struct $Group:ident {
            $($field:ident: $type:ty = $first:expr, $name:literal $help:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $Group {
            $(pub(crate) $field: $type,)*
        }

        impl $Group {
            fn registered(registry: &mut Registry) -> Self {
                let group = Self { $($field: $first,)* };
                $(registry.register($name, $help, group.$field.clone());)*
                group
            }
        }
    };
}

families! {
    /// Families of requests, from their acceptance to their end.
    struct RequestFamilies {
        outcomes: IndexedFamily<Labels<2>, Counter> = IndexedFamily::default(),
            "warmroute_requests" "Requests by route and outcome";
        shed: IndexedFamily<Labels<1>, Counter> = IndexedFamily::default(),
            "warmroute_shed" "Requests refused for want of room";
        panics: Counter = Counter::default(),
            "warmroute_panics" "Requests that ended in a panic";
        stages: Seconds<Labels<1>> = IndexedFamily::new_with_constructor(stage_seconds),
            "warmroute_stage_seconds" "Time spent in a stage of the router";
        durations: Seconds<Labels<1>> = IndexedFamily::new_with_constructor(request_seconds),
            "warmroute_request_seconds" "Time from accepting a request to its end";
        queue_wait: Histogram = request_seconds(),
            "warmroute_queue_wait_seconds" "Time that requests waited for a worker, of those that did";
        tenant_durations: Seconds<TenantLabel> = IndexedFamily::new_with_constructor(request_seconds),
            "vllm_router_tenant_request_duration_seconds" "Time from accepting a tenant's request to its end";
        similarity: Histogram = similarity(),
            "vllm_router_cache_similarity" "Cosine of question and kept question, where their meaning answered";
        slo: IndexedFamily<Labels<2>, Counter> = IndexedFamily::default(),
            "warmroute_slo_requests" "Streams with a latency target, by whether their tokens came in time";
        open_streams: Gauge = Gauge::default(),
            "warmroute_open_streams" "Replies being relayed";
        buffered_body_bytes: Gauge = Gauge::default(),
            "warmroute_held_body_bytes" "Bytes of request bodies and whole replies in memory";
    }
}

families! {
    /// Families of decisions, and of the prompts by which they are made.
    struct DecisionFamilies {
        decisions: IndexedFamily<Labels<2>, Counter> = IndexedFamily::default(),
            "warmroute_decisions" "Placement decisions";
        durations: Seconds<Labels<1>> = IndexedFamily::new_with_constructor(stage_seconds),
            "warmroute_decision_seconds" "Time of one placement decision";
        prompt_source: IndexedFamily<Labels<1>, Counter> = IndexedFamily::default(),
            "warmroute_prompt_source" "How the identity of prompts was found";
        prefill: IndexedFamily<Labels<1>, Counter> = IndexedFamily::default(),
            "warmroute_prefill" "Requests of models with prefill workers, by what became of the prefill";
        overlap: Histogram = ratio(),
            "warmroute_overlap_ratio" "Share of the prompt predicted to be cached where it went";
    }
}

families! {
    /// Families of attempts, and of what workers did with them.
    struct WorkerFamilies {
        attempts: IndexedFamily<Labels<2>, Counter> = IndexedFamily::default(),
            "warmroute_attempts" "Attempts at workers by retry class and result";
        failures: IndexedFamily<WorkerReason, Counter> = IndexedFamily::default(),
            "warmroute_upstream_failures" "Failures of workers as requests saw them";
        throttled: IndexedFamily<WorkerLabel, Counter> = IndexedFamily::default(),
            "warmroute_upstream_throttled" "Requests that workers answered with 429";
        streams_incomplete: IndexedFamily<WorkerLabel, Counter> = IndexedFamily::default(),
            "warmroute_streams_incomplete" "Streams that ended without saying that they were whole";
        ttft: Seconds<WorkerLabel> = IndexedFamily::new_with_constructor(request_seconds),
            "warmroute_ttft_seconds" "Time from accepting a request to its first byte from the worker";
        prompt_tokens: IndexedFamily<WorkerLabel, Counter> = IndexedFamily::default(),
            "warmroute_prompt_tokens" "Prompt tokens that workers reported";
        predicted_cached_tokens: IndexedFamily<WorkerLabel, Counter> = IndexedFamily::default(),
            "warmroute_predicted_cached_tokens" "Cached tokens predicted at decision time";
        actual_cached_tokens: IndexedFamily<WorkerLabel, Counter> = IndexedFamily::default(),
            "warmroute_actual_cached_tokens" "Cached tokens that workers reported";
        parity: IndexedFamily<WorkerResult, Counter> = IndexedFamily::default(),
            "warmroute_parity_requests" "Predictions against what the worker reported";
    }
}

/// All families of the request path.
#[derive(Debug)]
pub(crate) struct Metrics {
    labels: NameLabels,
    /// Shared with the tenants' counters.
    pub(crate) tenants: Arc<NameLabels>,
    pub(crate) requests: RequestFamilies,
    decisions: DecisionFamilies,
    workers: WorkerFamilies,
}

impl Metrics {
    /// Registers every family.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            labels: NameLabels::default(),
            tenants: Arc::default(),
            requests: RequestFamilies::registered(registry),
            decisions: DecisionFamilies::registered(registry),
            workers: WorkerFamilies::registered(registry),
        };
        metrics.requests.start_at_zero();
        metrics.decisions.start_at_zero();
        metrics.workers.start_at_zero();
        metrics
    }

    /// Records a placement decision that took `us` microseconds.
    pub(crate) fn record_decision(&self, policy: &'static str, method: &'static str, us: f64) {
        self.record_method(policy, method);
        let durations = &self.decisions.durations;
        durations.with(&[("policy", policy)], |series| series.observe(us / 1e6));
    }

    /// Records the method by which a request got its worker or its reply, without a decision time.
    pub(crate) fn record_method(&self, policy: &'static str, method: &'static str) {
        count(
            &self.decisions.decisions,
            [("policy", policy), ("method", method)],
        );
    }

    /// Records a similarity hit with its cosine.
    pub(crate) fn record_similar_hit(&self, similarity: f64) {
        self.requests.similarity.observe(similarity);
    }

    /// Records a request's wait for a worker.
    pub(crate) fn record_wait(&self, waited: Duration) {
        self.requests.queue_wait.observe(waited.as_secs_f64());
    }

    /// Records the end of an attempt.
    pub(crate) fn record_attempt(&self, class: &'static str, result: &'static str) {
        count(
            &self.workers.attempts,
            [("class", class), ("result", result)],
        );
    }

    /// Records a worker's failure.
    pub(crate) fn record_worker_failure(&self, worker: &str, reason: &'static str) {
        let worker = self.labels.label(worker);
        count(&self.workers.failures, WorkerReason { worker, reason });
    }

    /// Records a 429 of a worker.
    pub(crate) fn record_throttle(&self, worker: &str) {
        count(&self.workers.throttled, self.labelled(worker));
    }

    /// Records a stream without its end marker.
    pub(crate) fn record_incomplete_stream(&self, worker: &str) {
        count(&self.workers.streams_incomplete, self.labelled(worker));
    }

    fn labelled(&self, worker: &str) -> WorkerLabel {
        WorkerLabel {
            worker: self.labels.label(worker),
        }
    }

    /// Records the end of a tenant's request.
    pub(crate) fn record_tenant_request(&self, tenant: &str, took: Duration) {
        let tenant = self.tenants.label(tenant);
        let durations = &self.requests.tenant_durations;
        durations.with(&TenantLabel { tenant }, |series| {
            series.observe(took.as_secs_f64());
        });
    }

    /// Records a rejected request.
    pub(crate) fn record_rejection(&self, reason: &'static str) {
        count(&self.requests.shed, [("reason", reason)]);
    }

    /// Records the source of a prompt's identity.
    pub(crate) fn record_prompt_source(&self, source: &'static str) {
        count(&self.decisions.prompt_source, [("source", source)]);
    }

    /// Records the end of a request with a prefill leg, planned or sent.
    pub(crate) fn record_prefill(&self, note: &PrefillNote) {
        let result = match (note.skipped, note.ms) {
            (Some(reason), _) => reason.as_str(),
            (None, Some(_)) => PREFILLED,
            (None, None) => UNFINISHED,
        };
        count(&self.decisions.prefill, [("result", result)]);
    }

    /// Records the end of a request.
    pub(crate) fn record_request(&self, summary: &RequestSummary<'_>) {
        let (families, route) = (&self.requests, summary.route);
        count(
            &families.outcomes,
            [("route", route), ("outcome", summary.kind.as_str())],
        );
        families.durations.with(&[("route", route)], |series| {
            series.observe(summary.took.as_secs_f64());
        });
        if let Some(timing) = summary.timing {
            families.record_stages(timing);
        }
        let Some(selection) = summary.selection else {
            return;
        };
        if let Some(slo) = &selection.slo {
            families.record_slo(TTFT, slo.ttft.zip(summary.ttft));
            families.record_slo(TPOT, slo.tpot.zip(summary.tpot));
        }
        let worker = self.labelled(&selection.worker);
        if let Some(ttft) = summary.ttft {
            let series = &self.workers.ttft;
            series.with(&worker, |series| series.observe(ttft.as_secs_f64()));
        }
        let Some(usage) = summary.usage else { return };
        let (predicted, prompt) = (selection.predicted_cached_tokens, usage.prompt_tokens);
        if prompt > 0 && selection.looked_up {
            let share = (f64::from(predicted) / f64::from(prompt)).min(1.0);
            self.decisions.overlap.observe(share);
        }
        add(&self.workers.prompt_tokens, &worker, prompt);
        // Counted only where both are known, so that the two totals are comparable.
        let compared_tokens = summary.compared_tokens.flatten();
        let reported = usage.cached_tokens.filter(|_| selection.looked_up);
        if let Some(actual) = compared_tokens.or(reported) {
            let workers = &self.workers;
            workers.record_cached_tokens(&worker, predicted, actual);
        }
        if let Some(actual) = compared_tokens {
            self.workers.record_parity(worker, predicted, actual);
        }
    }
}

impl RequestFamilies {
    fn record_stages(&self, timing: &RouterTiming) {
        for (stage, us) in [
            ("accept", timing.accept),
            ("render", timing.render),
            ("tokenize", timing.tokenize),
            ("hash", timing.hash),
            ("lookup", timing.lookup),
            ("decide", timing.decide),
        ] {
            let stages = &self.stages;
            stages.with(&[("stage", stage)], |series| series.observe(us / 1e6));
        }
    }

    /// Counts a target with the time that it is compared with, if there are both.
    fn record_slo(&self, slo: &'static str, times: Option<(Duration, Duration)>) {
        if let Some((target, actual)) = times {
            let result = if actual <= target { MET } else { MISSED };
            count(&self.slo, [("slo", slo), ("result", result)]);
        }
    }

    fn start_at_zero(&self) {
        for slo in [TTFT, TPOT] {
            for result in [MET, MISSED] {
                self.slo.begin(&[("slo", slo), ("result", result)]);
            }
        }
        let codes = ErrorCode::ALL.into_iter().filter(|code| code.sheds_load());
        let causes = [BUFFERED_BYTES, MEMORY, SLO];
        for reason in codes.map(ErrorCode::as_str).chain(causes) {
            self.shed.begin(&[("reason", reason)]);
        }
        for route in ROUTES {
            for outcome in OutcomeKind::ALL {
                let labels = [("route", route.path), ("outcome", outcome.as_str())];
                self.outcomes.begin(&labels);
            }
        }
    }
}

impl DecisionFamilies {
    fn start_at_zero(&self) {
        let skips = PrefillSkip::ALL.map(PrefillSkip::as_str);
        for result in skips.into_iter().chain([PREFILLED, UNFINISHED]) {
            self.prefill.begin(&[("result", result)]);
        }
        for source in [
            PromptSource::Tokens,
            PromptSource::EngineTokenize,
            PromptSource::EngineRender,
            PromptSource::Given,
            PromptSource::TextPrefix,
            PromptSource::None,
        ] {
            let labels = [("source", source.as_str())];
            self.prompt_source.begin(&labels);
        }
    }
}

impl WorkerFamilies {
    fn record_cached_tokens(&self, worker: &WorkerLabel, predicted: u32, actual: u32) {
        add(&self.predicted_cached_tokens, worker, predicted);
        add(&self.actual_cached_tokens, worker, actual);
    }

    fn record_parity(&self, WorkerLabel { worker }: WorkerLabel, predicted: u32, actual: u32) {
        let result = match predicted.cmp(&actual) {
            Ordering::Equal => "exact",
            Ordering::Greater => "over",
            Ordering::Less => "under",
        };
        count(&self.parity, WorkerResult { worker, result });
    }

    fn start_at_zero(&self) {
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
            let labels = [("class", class), ("result", result.as_str())];
            self.attempts.begin(&labels);
        }
    }
}

fn count<L: Clone + Eq + Hash>(family: &IndexedFamily<L, Counter>, labels: L) {
    family.with(&labels, |series| {
        series.inc();
    });
}

fn add(family: &IndexedFamily<WorkerLabel, Counter>, worker: &WorkerLabel, tokens: u32) {
    family.with(worker, |series| {
        series.inc_by(u64::from(tokens));
    });
}

#[cfg(test)]
mod tests {
    use routing::SloTargets;

    use super::*;

    #[test]
    fn every_tokenization_source_has_its_series_from_the_start() {
        let mut registry = Registry::default();
        let _metrics = Metrics::new(&mut registry);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        for source in [
            "tokens",
            "engine_tokenize",
            "engine_render",
            "given",
            "text_prefix",
            "none",
        ] {
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
        let selection = crate::request::receipt::tests::selection("w1", 64);
        let usage = |cached_tokens| Usage {
            prompt_tokens: 128,
            completion_tokens: 1,
            cached_tokens,
        };
        for (usage, compared_tokens) in [
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
                tpot: None,
                timing: None,
                selection: Some(&selection),
                usage,
                compared_tokens,
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
    fn targets_are_counted_as_met_or_missed_only_where_the_time_is_known() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let targets = SloTargets {
            ttft: Some(Duration::from_millis(500)),
            tpot: Some(Duration::from_millis(40)),
        };
        for (slo, ttft_ms, tpot_ms) in [
            (Some(targets), Some(500), Some(41)),
            (Some(targets), Some(501), None),
            (Some(targets), Some(20), Some(40)),
            (Some(targets), None, None),
            (None, Some(1), Some(1)),
        ] {
            let selection = Selection {
                slo: slo.map(Box::new),
                ..crate::request::receipt::tests::selection("w1", 0)
            };
            metrics.record_request(&RequestSummary {
                route: "/v1/completions",
                kind: OutcomeKind::Ok,
                took: Duration::from_secs(1),
                ttft: ttft_ms.map(Duration::from_millis),
                tpot: tpot_ms.map(Duration::from_millis),
                timing: None,
                selection: Some(&selection),
                usage: None,
                compared_tokens: None,
            });
        }
        let page = page(&registry);
        for line in [
            "warmroute_slo_requests_total{slo=\"ttft\",result=\"met\"} 2",
            "warmroute_slo_requests_total{slo=\"ttft\",result=\"missed\"} 1",
            "warmroute_slo_requests_total{slo=\"tpot\",result=\"met\"} 1",
            "warmroute_slo_requests_total{slo=\"tpot\",result=\"missed\"} 1",
            "warmroute_shed_total{reason=\"slo\"} 0",
        ] {
            assert!(page.lines().any(|there| there == line), "{line}\n{page}");
        }
    }

    #[test]
    fn beyond_the_first_workers_all_failures_and_tokens_share_one_series() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let most = crate::name_labels::MOST_NAMES;
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
