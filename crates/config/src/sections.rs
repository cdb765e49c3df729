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
mod worker;
mod worker_events;
mod worker_health;

use ::parity::ParitySettings;
use ::routing::{DecisionsSection, PrefixRoutingSection, QueueSettings, RoutingSection};
use settings::{Section, ValueKind};

pub use cache::{BackgroundRefresh, CacheSection, ModelAggregationSection};
pub use cache_tiers::{CacheL1, CacheL2, L1Kind, L2Kind, S3Credentials};
pub use compat::{CompatHeaders, CompatMetrics, CompatSection};
pub use disaggregation::{Connector, DisaggregationMode, DisaggregationSection, PrefillFallback};
pub use discovery::{DiscoverySection, DnsName};
pub use health::{CircuitBreakerSection, HealthChecksSection};
pub use hooks::{HookEntry, HookErrorAction, HookRejection};
pub use kv_cache_index::{
    IndexBackend, KvCacheIndexSection, Offloading, PrefixEventSource, PrefixHashKind,
};
pub use kv_events::{BlockHashKind, KvEventsSection, PredictionSection};
pub use logging::{LogFormat, LogLevel, LoggingSection, MetricsSection};
pub use models::{ChatTemplateSetting, ModelEntry, ModelRule, ModelsSection, TokenizerSetting};
pub use redis::{CacheFallback, CacheRedis, RedisSection};
pub use replicas::{ReplicaMode, ReplicaStream, ReplicasSection};
pub use request::{RequestSection, RetrySection};
pub use response_cache::{
    AbsentTemperature, CacheBackend, CacheTiering, ResponseCacheSection, SemanticCache,
};
pub use server::{AdminSection, MemoryBudget, ServerSection};
pub use tls::{ListenerTls, WorkerTls};
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
        /// The listener that clients use.
        server: ServerSection, live;
        /// The listener that operators use.
        admin: AdminSection, restart;
        /// The engines (alias `backends`). An entry is a mapping, or just `[NAME=]URL`.
        workers: Vec<WorkerEntry> = "[]" in WORKERS, live;
        /// Workers that are found, beside those of `workers`.
        discovery: DiscoverySection, restart;
        /// Where tokenizers and chat templates come from.
        models: ModelsSection, live;
        /// How a worker is chosen.
        routing: RoutingSection, live;
        /// How prompts are computed apart from their replies.
        disaggregation: DisaggregationSection, live;
        /// How requests wait here for a worker.
        queue: QueueSettings, live;
        /// How requests are kept together by the beginning of their prompt.
        prefix_routing: PrefixRoutingSection, live;
        /// How KV events are followed, and what the block index may hold.
        kv_events: KvEventsSection, live;
        /// Which backend has which prompt prefix, as streams that name whole prefixes say.
        kv_cache_index: KvCacheIndexSection, restart;
        /// Redis, which `kv_cache_index` uses too; the cache of replies itself.
        response_cache: ResponseCacheSection, live;
        /// What is kept of model lists, and of requests that are alike.
        cache: CacheSection, live;
        /// How the lists of all workers become one.
        model_aggregation: ModelAggregationSection, live;
        /// How far predictions may be off before a worker's events are not believed any more.
        parity: ParitySettings, restart;
        /// How workers are checked.
        health_checks: HealthChecksSection, live;
        /// Time limits of one request.
        request: RequestSection, live;
        /// How often and how soon a request is sent again.
        retry: RetrySection, live;
        /// When a failing worker is left out for a while.
        circuit_breaker: CircuitBreakerSection, live;
        /// Services that are asked about a generation before it is routed, in this order.
        hooks "pre_routing_hooks": Vec<HookEntry> = "[]", live;
        /// What several routers of one fleet share.
        replicas: ReplicasSection, restart;
        /// What is logged; the log goes to stderr.
        logging: LoggingSection, live;
        /// What is counted.
        metrics: MetricsSection, restart;
        /// What is kept of each decision.
        decisions: DecisionsSection, restart;
        /// Names of other routers that this one answers with too.
        compat: CompatSection, live;
    }
    with {
        /// Redis server that shares the token ids of `routing.lmcache.prompt_cache`, if there is
        /// one.
        pub prompt_cache_redis: Option<RedisSection>;
        /// Keys that are set and have no effect in this version.
        pub(crate) idle: Vec<Problem>;
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

    /// Returns keys that are set and valid but have no effect in this version, for a warning to the
    /// user.
    pub fn ignored_keys(&self) -> &[Problem] {
        &self.idle
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
