//! The checked settings: one struct per section of the configuration.
//!
//! Defaults and allowed values are in [`crate::schema`]'s table and nowhere else.
//!
//! **Invariant**: a value of these types passed every check; nothing here needs to be checked
//! again.

mod cache;
mod compat;
mod content_routing;
mod disaggregation;
mod discovery;
mod hooks;
mod kv;
mod lmcache;
mod models;
mod parity;
mod queue;
mod redis;
mod replicas;
mod response_cache;
mod routing;
mod tls;
mod worker;

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

pub use cache::{CacheSection, ModelAggregationSection};
pub use compat::CompatSection;
pub use content_routing::{SemanticCluster, SemanticClusters, SharedPrefixRouting};
pub use disaggregation::{Connector, DisaggregationSection};
pub use discovery::{DiscoverySection, DnsName};
pub use hooks::HookEntry;
pub use kv::{
    BlockHashKind, KvCacheIndexSection, KvEventsSection, Offloading, PredictionSection,
    PrefixEventSource, PrefixHashKind, ScoringSection,
};
pub use lmcache::{LmcacheMode, LmcacheSection, PromptCacheSection};
pub use models::{ChatTemplateSetting, ModelEntry, ModelRule, ModelsSection, TokenizerSetting};
pub use parity::ParitySection;
pub use queue::QueueSection;
pub use redis::RedisSection;
pub use replicas::ReplicasSection;
pub use response_cache::{
    AbsentTemperature, CacheBackend, CacheFallback, CacheL1, CacheL2, CacheRedis, CacheTiering,
    L1Kind, ResponseCacheSection, S3Credentials, SemanticCache,
};
pub use routing::{
    DynamoSection, MediumWeights, ModelRoutingEntry, PrefixRoutingSection, RoutingSection,
    SessionMode, SessionSection,
};
pub use tls::{ListenerTls, WorkerTls};
pub use worker::{
    CheckMethod, EngineKind, EventSource, HealthCheck, MessagesMode, ReplayEndpoint, WorkerEntry,
    WorkerKvEvents,
};

use crate::{ListenSetting, Problem, origins::ValueOrigins};

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The data listener.
    pub server: ServerSection,
    /// The admin listener.
    pub admin: AdminSection,
    /// The engines, in the order of the file.
    pub workers: Vec<WorkerEntry>,
    /// Sources of discovered workers.
    pub discovery: DiscoverySection,
    /// Tokenizers and chat templates.
    pub models: ModelsSection,
    /// Choice of a worker.
    pub routing: RoutingSection,
    /// Separate prefill and decode workers.
    pub disaggregation: DisaggregationSection,
    /// Routing by the beginning of the prompt.
    pub prefix_routing: PrefixRoutingSection,
    /// Event streams, and the budget of the block index.
    pub kv_events: KvEventsSection,
    /// View of prefixes by backend.
    pub kv_cache_index: KvCacheIndexSection,
    /// Response cache.
    pub response_cache: ResponseCacheSection,
    /// Cached model lists and coalescing of equal requests.
    pub cache: CacheSection,
    /// Merging of all workers' model lists.
    pub model_aggregation: ModelAggregationSection,
    /// Allowed error of predictions.
    pub parity: ParitySection,
    /// Health checks of workers.
    pub health_checks: HealthChecksSection,
    /// Queue for requests.
    pub queue: QueueSection,
    /// Time limits of one request.
    pub request: RequestSection,
    /// Number and delays of retries.
    pub retry: RetrySection,
    /// Ejection of failing workers.
    pub circuit_breaker: CircuitBreakerSection,
    /// Hooks called before routing, in this order.
    pub hooks: Vec<HookEntry>,
    /// State shared by several routers.
    pub replicas: ReplicasSection,
    /// Logging.
    pub logging: LoggingSection,
    /// Metrics.
    pub metrics: MetricsSection,
    /// Receipts of decisions.
    pub decisions: DecisionsSection,
    /// Compatibility names in replies.
    pub compat: CompatSection,
    /// Keys that are set and have no effect in this version.
    pub(crate) idle: Vec<Problem>,
    /// Workers of [`crate::ConfigSource::more_workers`] skipped because their names were taken.
    pub(crate) passed_over: Vec<Problem>,
    /// Every key with the value in force, secrets as `***`.
    pub(crate) effective: serde_json::Value,
    pub(crate) origins: ValueOrigins,
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

/// Section `server`.
#[derive(Clone, Debug)]
pub struct ServerSection {
    /// Data listener for clients (`server.port` already applied).
    pub listen: ListenSetting,
    /// Further data listeners.
    pub also_listen: Vec<ListenSetting>,
    /// Separate listener for probes.
    pub probe_listen: Option<ListenSetting>,
    /// Certificate of the data listener; `None` = plain connections.
    pub tls: Option<ListenerTls>,
    /// Whether listening off loopback without an API key is allowed.
    pub insecure_open: bool,
    /// Longest accepted request head, bytes.
    pub max_head_bytes: usize,
    /// Longest accepted request body, bytes.
    pub max_body_bytes: usize,
    /// Bytes of the bodies of all running requests together.
    pub max_held_bytes: u64,
    /// Most completions of one prompt; 0 = off.
    pub max_choices: u64,
    /// Most prompts of one request; 0 = off.
    pub max_prompts: u64,
    /// Most stop sequences; 0 = off.
    pub max_stop: u64,
    /// Memory budget of the process; near it, caches and then new work are given up.
    pub memory_budget: MemoryBudget,
    /// Most open client connections; `None` = from the file descriptor limit.
    pub max_connections: Option<NonZeroU32>,
    /// Time after which an idle client connection is closed.
    pub keep_alive: Duration,
    /// Time limit for a complete request head.
    pub head_timeout: Duration,
    /// Time limit for a complete request body.
    pub body_timeout: Duration,
    /// Whether a client that half-closed its connection still gets its reply.
    pub half_close: bool,
    /// Time that running streams get after a stop signal.
    pub drain_timeout: Duration,
    /// Time after the signal during which new connections are served.
    pub drain_grace: Duration,
    /// Threads of the runtime; `None` = one per core.
    pub runtime_threads: Option<NonZeroU32>,
}

/// Memory budget of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBudget {
    /// A share of the memory that the system gives to the process.
    Auto,
    /// No limit.
    Off,
    /// This many bytes.
    Bytes(u64),
}

/// Section `admin`.
#[derive(Clone, Debug)]
pub struct AdminSection {
    /// Admin listener for operators.
    pub listen: ListenSetting,
    /// Certificate of the admin listener; `None` = plain connections.
    pub tls: Option<ListenerTls>,
    /// File that holds the admin token.
    pub token_file: Option<PathBuf>,
    /// Whether the dashboard is served.
    pub dashboard: bool,
}

/// Section `health_checks`.
#[derive(Clone, Debug)]
pub struct HealthChecksSection {
    /// Whether workers are probed.
    pub enabled: bool,
    /// Time between checks.
    pub interval: Duration,
    /// Time limit for one answer.
    pub timeout: Duration,
    /// Consecutive failures that make a worker unhealthy.
    pub unhealthy_threshold: NonZeroU32,
    /// Consecutive successes that make it healthy again.
    pub healthy_threshold: NonZeroU32,
    /// Path probed first; `None` = the list of the worker's type.
    pub endpoint: Option<String>,
    /// Time between checks while a worker loads its model.
    pub warmup_check_interval: Duration,
    /// Loading time after which a worker is unhealthy.
    pub max_warmup_duration: Duration,
    /// First pause between probes of a worker that is down.
    pub recovery_interval: Duration,
    /// Longest pause between such probes.
    pub recovery_max_interval: Duration,
}

/// Section `request`.
#[derive(Clone, Debug)]
pub struct RequestSection {
    /// Time limit for a stream's first byte, or for a whole non-stream reply, over all attempts.
    pub timeout: Duration,
    /// Most retries of a request.
    pub max_retries: u32,
    /// Time without a byte after which a stream is cut.
    pub stream_idle_timeout: Duration,
    /// Total time after which a stream is cut.
    pub stream_max_duration: Duration,
    /// Whether a stream without its end marker is cut.
    pub strict_stream_completion: bool,
    /// Time limit for one TCP connect.
    pub connect_timeout: Duration,
    /// Time without a byte after which a hedge is sent to another worker.
    pub hedge_after: Option<Duration>,
}

/// Section `retry`.
#[derive(Clone, Debug)]
pub struct RetrySection {
    /// Most attempts, the first one included (`request.max_retries` already applied).
    pub max_attempts: NonZeroU32,
    /// First delay before the same worker is tried again.
    pub base_delay: Duration,
    /// Longest delay.
    pub max_delay: Duration,
    /// Whether the delay doubles.
    pub exponential_backoff: bool,
    /// Whether the delay is drawn from its upper half.
    pub jitter: bool,
    /// Most retries in flight, as a share of the requests in flight.
    pub budget_ratio: f64,
}

/// Section `circuit_breaker`.
#[derive(Clone, Debug)]
pub struct CircuitBreakerSection {
    /// Whether failing workers are ejected.
    pub enabled: bool,
    /// Consecutive failures that eject a worker.
    pub consecutive_failures: NonZeroU32,
    /// Time between checks of all workers.
    pub sweep: Duration,
    /// Duration of a worker's first ejection.
    pub ejection: Duration,
    /// Largest share of a pool that may be ejected.
    pub max_ejected_ratio: f64,
}

/// Section `logging`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingSection {
    /// Least important level that is logged.
    pub level: LogLevel,
    /// Format of a line.
    pub format: LogFormat,
    /// Whether the pretty format uses colours.
    pub enable_colors: bool,
    /// Whether each request gets a line.
    pub requests: bool,
}

/// `logging.level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// For developers.
    Debug,
    /// Normal operation.
    Info,
    /// Conditions that deserve an operator's attention.
    Warn,
    /// Failures.
    Error,
}

impl LogLevel {
    /// Returns the level's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// `logging.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    Auto,
    /// One JSON object per line.
    Json,
    /// For people.
    Pretty,
}

/// Section `metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSection {
    /// Whether `/metrics` is served.
    pub enabled: bool,
    /// Whether histograms carry exemplars.
    pub exemplars: bool,
}

/// Section `decisions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionsSection {
    /// Most receipts in the ring.
    pub ring_entries: usize,
    /// Most bytes of receipts in the ring.
    pub ring_bytes: usize,
    /// Most candidates per receipt.
    pub candidates: usize,
    /// The decision log, if there is one.
    pub log: Option<DecisionLogSection>,
}

/// `decisions.log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionLogSection {
    /// File that gets one receipt per line.
    pub path: PathBuf,
    /// Time between writes.
    pub interval: Duration,
    /// Whether lines contain the hashes of the prompts' blocks.
    pub chains: bool,
    /// Whether lines contain the prompts' text.
    pub include_request_text: bool,
}
