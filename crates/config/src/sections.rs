//! The checked settings: one struct per section of the configuration.
//!
//! Each section is declared once, in the crate that uses it or in a file here, with names, kinds,
//! defaults and documentation of its keys.
//!
//! **Invariant**: a value of these types passed every check; nothing here needs to be checked
//! again.

mod cache;
mod cache_tiers;
mod compat;
mod disaggregation;
mod discovery;
mod health;
mod hooks;
mod kv_cache_index;
mod kv_events;
mod logging;
mod models;
mod redis;
mod replicas;
mod request;
mod response_cache;
mod server;
mod tls;
mod tracing;
mod worker;
mod worker_events;
mod worker_health;

use ::parity::ParitySettings;
use ::routing::{DecisionsSection, PrefixRoutingSection, QueueSettings, RoutingSection};
use settings::{Section, ValueKind};
use tenants::TenantsSection;

pub use cache::{BackgroundRefresh, CacheSection, ModelAggregationSection};
pub use cache_tiers::{CacheL1, CacheL2, L1Kind, L2Kind, S3Credentials};
pub use compat::{CompatHeaders, CompatMetrics, CompatSection};
pub use disaggregation::{Connector, DisaggregationMode, DisaggregationSection, PrefillFallback};
pub use discovery::{DiscoverySection, DnsName, DnsScheme};
pub use health::{CircuitBreakerSection, HealthChecksSection};
pub use hooks::{HookEntry, HookErrorAction, HookRejection};
pub use kv_cache_index::{IndexBackend, KvCacheIndexSection, PrefixEventSource};
pub use kv_events::{BlockHashKind, IndexSnapshotSection, KvEventsSection};
pub use logging::{LogFormat, LogLevel, LoggingSection, MetricsSection};
pub use models::{ChatTemplateSetting, ModelEntry, ModelRule, ModelsSection, TokenizerSetting};
pub use redis::{CacheFallback, CacheRedis, RedisSection};
pub use replicas::{ReplicaMode, ReplicaStream, ReplicasSection};
pub use request::{RequestSection, RetrySection};
pub use response_cache::{
    AbsentTemperature, CacheBackend, CacheTiering, ResponseCacheSection, SemanticCache,
};
pub use server::{AdminRole, AdminSection, AdminTokenEntry, MemoryBudget, ServerSection};
pub use tls::{ListenerTls, WorkerTls};
pub use tracing::TracingSection;
pub use worker::{EngineKind, MessagesMode, WorkerEntry};
pub(crate) use worker_events::SCHEMES;
pub use worker_events::{EventSource, ReplayEndpoint, WorkerKvEvents};
pub use worker_health::{CheckMethod, HealthCheck};

use crate::{Problem, origins::ValueOrigins};

const WORKERS: ValueKind = ValueKind::List(&ValueKind::Worker(WorkerEntry::KEYS));

settings::section! {
    /// The whole configuration.
    #[derive(Clone, Debug)]
    pub struct Settings {
        /// Data listener, for clients.
        server: ServerSection, live;
        /// Admin listener, for operators.
        admin: AdminSection, restart;
        /// Engines (alias `backends`). An entry is a mapping, or just `[NAME=]URL`.
        workers: Vec<WorkerEntry> = "[]" in WORKERS, live;
        /// Discovery of workers beside those in `workers`.
        discovery: DiscoverySection, restart;
        /// Tokenizers, chat templates and names of models.
        models: ModelsSection, live;
        /// Choice of a worker.
        routing: RoutingSection, live;
        /// Prefill/decode disaggregation.
        disaggregation: DisaggregationSection, live;
        /// Queue of requests that wait in the router for a worker.
        queue: QueueSettings, live;
        /// Routing by the beginning of the prompt.
        prefix_routing: PrefixRoutingSection, live;
        /// KV events, and limits of the block index.
        kv_events: KvEventsSection, live;
        /// Prefix view: which worker holds which prompt prefix, by event streams that name whole
        /// prefixes.
        kv_cache_index: KvCacheIndexSection, restart;
        /// Response cache, and the Redis server that `kv_cache_index` uses too.
        response_cache: ResponseCacheSection, live;
        /// Lifetimes of model lists, and coalescing of equal requests.
        cache: CacheSection, live;
        /// Merge of all workers' model lists.
        model_aggregation: ModelAggregationSection, live;
        /// Parity: how far predictions may be off before a worker loses trust.
        parity: ParitySettings, restart;
        /// Health checks of workers.
        health_checks: HealthChecksSection, live;
        /// Limits of one request.
        request: RequestSection, live;
        /// Retries of failed attempts.
        retry: RetrySection, live;
        /// Ejection of workers whose requests fail.
        circuit_breaker: CircuitBreakerSection, live;
        /// Hooks that are called before a generation is routed, in this order.
        hooks "pre_routing_hooks": Vec<HookEntry> = "[]", live;
        /// Tenants: keys of clients, what each may use, and its limits.
        tenants: TenantsSection, live;
        /// State that several routers of one fleet share.
        replicas: ReplicasSection, restart;
        /// Log output, on stderr.
        logging: LoggingSection, live;
        /// Metrics endpoint.
        metrics: MetricsSection, restart;
        /// Traces of requests, for an OpenTelemetry collector.
        tracing: TracingSection, live;
        /// Receipts of decisions.
        decisions: DecisionsSection, restart;
        /// Compatibility with names of other routers.
        compat: CompatSection, live;
    }
    with {
        /// Redis server that shares the token ids of `routing.lmcache.prompt_cache`, if there is
        /// one.
        pub prompt_cache_redis: Option<RedisSection>;
        /// Keys that are set and have no effect beside the others.
        pub(crate) ignored: Vec<Problem>;
        /// Workers of [`crate::ConfigSource::more_workers`] skipped because their names were taken.
        pub(crate) passed_over: Vec<Problem>;
        /// Every key with the value in force, secrets as `***`.
        pub(crate) effective: serde_json::Value;
        /// Origins of the keys that were set.
        pub(crate) origins: ValueOrigins;
    }
}

impl Settings {
    /// Returns every key with the value in force, secrets as `***`.
    pub fn to_json(&self) -> &serde_json::Value {
        &self.effective
    }

    /// Returns the same as YAML.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(&self.effective).expect("a JSON value has a YAML form")
    }

    /// Returns keys that are set and valid but have no effect beside the others, for a warning to
    /// the user.
    pub fn ignored_keys(&self) -> &[Problem] {
        &self.ignored
    }

    /// Returns workers from sources other than file, variables and flags that were skipped because
    /// their name was taken, for a warning to the user.
    pub fn skipped_workers(&self) -> &[Problem] {
        &self.passed_over
    }

    /// Returns whether a source set this key; otherwise it has its default.
    pub fn is_set(&self, path: &str) -> bool {
        self.origins.has(path)
    }

    /// Adds the line of its key to a problem found after loading (see [`Problem::bad_value`]).
    pub fn locate(&self, problem: Problem) -> Problem {
        self.origins.locate(problem)
    }
}
