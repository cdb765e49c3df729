//! The checked settings: one struct per section of the configuration.
//!
//! What a default is and which values are allowed stands in [`crate::schema`]'s table and nowhere else.
//!
//! **Invariant**: a value of these types passed every check; nothing here needs to be checked again.

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
    /// Workers that are found.
    pub discovery: DiscoverySection,
    /// Where tokenizers and chat templates come from.
    pub models: ModelsSection,
    /// How a worker is chosen.
    pub routing: RoutingSection,
    /// How prompts are computed apart from their replies.
    pub disaggregation: DisaggregationSection,
    /// How requests are kept together by the beginning of their prompt.
    pub prefix_routing: PrefixRoutingSection,
    /// How KV events are followed, and what the block index may hold.
    pub kv_events: KvEventsSection,
    /// Which backend has which prompt prefix.
    pub kv_cache_index: KvCacheIndexSection,
    /// Replies that are kept.
    pub response_cache: ResponseCacheSection,
    /// What is kept of model lists and of requests that are alike.
    pub cache: CacheSection,
    /// How the lists of all workers become one.
    pub model_aggregation: ModelAggregationSection,
    /// How far predictions may be off.
    pub parity: ParitySection,
    /// How workers are checked.
    pub health_checks: HealthChecksSection,
    /// How requests wait.
    pub queue: QueueSection,
    /// Time limits of one request.
    pub request: RequestSection,
    /// How often and how soon a request is sent again.
    pub retry: RetrySection,
    /// When a failing worker is left out.
    pub circuit_breaker: CircuitBreakerSection,
    /// Who is asked before a request is routed, in this order.
    pub hooks: Vec<HookEntry>,
    /// What several routers share.
    pub replicas: ReplicasSection,
    /// What is logged.
    pub logging: LoggingSection,
    /// What is counted.
    pub metrics: MetricsSection,
    /// What is kept of each decision.
    pub decisions: DecisionsSection,
    /// What this router answers with beside its own names.
    pub compat: CompatSection,
    /// Keys that are set and have no effect in this version.
    pub(crate) idle: Vec<Problem>,
    /// Workers of [`crate::Source::more_workers`] whose names were there already.
    pub(crate) passed_over: Vec<Problem>,
    /// Every key with the value in force, secrets as `***`.
    pub(crate) effective: serde_json::Value,
    pub(crate) origins: ValueOrigins,
}

impl Settings {
    /// Every key with the value in force, secrets as `***`.
    pub fn to_json(&self) -> &serde_json::Value {
        &self.effective
    }

    /// The same as YAML.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(&self.effective).expect("a JSON value has a YAML form")
    }

    /// Keys that are set, known and right, and that this version does nothing with: the user is to be told.
    pub fn ignored_keys(&self) -> &[Problem] {
        &self.idle
    }

    /// Workers that came from elsewhere than file, variables and flags, and were left out because there was one of that
    /// name: the user is to be told.
    pub fn skipped_workers(&self) -> &[Problem] {
        &self.passed_over
    }

    /// Whether a source set this key, rather than its default standing there.
    pub fn is_set(&self, path: &str) -> bool {
        self.origins.has(path)
    }

    /// Gives a problem found after loading the line of its key (see [`Problem::bad_value`]).
    pub fn locate(&self, problem: Problem) -> Problem {
        self.origins.locate(problem)
    }
}

/// Section `server`.
#[derive(Clone, Debug)]
pub struct ServerSection {
    /// Where clients connect (`server.port` already applied).
    pub listen: ListenSetting,
    /// Where else.
    pub also_listen: Vec<ListenSetting>,
    /// Where probes are answered apart from clients.
    pub probe_listen: Option<ListenSetting>,
    /// What clients are shown; `None` = plain connections.
    pub tls: Option<ListenerTls>,
    /// Whether listening off loopback without an API key was asked for.
    pub insecure_open: bool,
    /// Longest accepted request head, bytes.
    pub max_head_bytes: usize,
    /// Longest accepted request body, bytes.
    pub max_body_bytes: usize,
    /// Bytes of the bodies of all running requests.
    pub max_held_bytes: u64,
    /// Most completions of one prompt; 0 = off.
    pub max_choices: u64,
    /// Most prompts of one request; 0 = off.
    pub max_prompts: u64,
    /// Most texts to stop at; 0 = off.
    pub max_stop: u64,
    /// Memory of the process near which things are given up.
    pub memory_budget: MemoryBudget,
    /// Most open client connections; `None` = from the file descriptor limit.
    pub max_connections: Option<NonZeroU32>,
    /// An idle client connection is closed after this.
    pub keep_alive: Duration,
    /// A request head must be complete within this.
    pub head_timeout: Duration,
    /// A request body must be complete within this.
    pub body_timeout: Duration,
    /// Whether who ended its side of the connection still gets its answer.
    pub half_close: bool,
    /// Running streams get this long after a stop signal.
    pub drain_timeout: Duration,
    /// New connections are served for this long after it.
    pub drain_grace: Duration,
    /// Threads of the runtime; `None` = one per core.
    pub runtime_threads: Option<NonZeroU32>,
}

/// How much memory the process may use before things are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBudget {
    /// A share of what the system gives to the process.
    Auto,
    /// However much.
    Off,
    /// So many bytes.
    Bytes(u64),
}

/// Section `admin`.
#[derive(Clone, Debug)]
pub struct AdminSection {
    /// Where operators connect.
    pub listen: ListenSetting,
    /// What operators are shown; `None` = plain connections.
    pub tls: Option<ListenerTls>,
    /// File that holds the admin token.
    pub token_file: Option<PathBuf>,
    /// Whether the dashboard is served.
    pub dashboard: bool,
}

/// Section `health_checks`.
#[derive(Clone, Debug)]
pub struct HealthChecksSection {
    /// Whether workers are checked by asking them.
    pub enabled: bool,
    /// Time between checks.
    pub interval: Duration,
    /// Time for one answer.
    pub timeout: Duration,
    /// Failures in a row that make a worker unhealthy.
    pub unhealthy_threshold: NonZeroU32,
    /// Successes in a row that bring it back.
    pub healthy_threshold: NonZeroU32,
    /// Path asked first; `None` = the worker type's own list.
    pub endpoint: Option<String>,
    /// Time between checks while a worker loads its model.
    pub warmup_check_interval: Duration,
    /// A worker that loads longer than this is unhealthy.
    pub max_warmup_duration: Duration,
    /// First pause between knocks on a worker that is down.
    pub recovery_interval: Duration,
    /// Longest pause between knocks.
    pub recovery_max_interval: Duration,
}

/// Section `request`.
#[derive(Clone, Debug)]
pub struct RequestSection {
    /// A stream's first byte, or a whole non-stream reply, over all attempts.
    pub timeout: Duration,
    /// Times a request is sent again.
    pub max_retries: u32,
    /// A stream is cut after this long without a byte.
    pub stream_idle_timeout: Duration,
    /// A stream is cut after this long in any case.
    pub stream_max_duration: Duration,
    /// A stream that ends without having said that it is whole is cut.
    pub strict_stream_completion: bool,
    /// Time for one TCP connect.
    pub connect_timeout: Duration,
    /// Where no byte came within this, another worker is asked too.
    pub hedge_after: Option<Duration>,
}

/// Section `retry`.
#[derive(Clone, Debug)]
pub struct RetrySection {
    /// Times a request is sent, the first one included (`request.max_retries` already applied).
    pub max_attempts: NonZeroU32,
    /// First delay before the same worker is tried again.
    pub base_delay: Duration,
    /// Longest delay.
    pub max_delay: Duration,
    /// Whether the delay doubles.
    pub exponential_backoff: bool,
    /// Whether the delay is drawn from its upper half.
    pub jitter: bool,
    /// Retries in flight over requests in flight, at most.
    pub budget_ratio: f64,
}

/// Section `circuit_breaker`.
#[derive(Clone, Debug)]
pub struct CircuitBreakerSection {
    /// Whether failing workers are left out.
    pub enabled: bool,
    /// Failures in a row that leave a worker out.
    pub consecutive_failures: NonZeroU32,
    /// Time between looks at all workers.
    pub sweep: Duration,
    /// How long a worker is left out the first time.
    pub ejection: Duration,
    /// Share of a pool that may be left out.
    pub max_ejected_ratio: f64,
}

/// Section `logging`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingSection {
    /// The least important level that is logged.
    pub level: LogLevel,
    /// How a line looks.
    pub format: LogFormat,
    /// Colours in the pretty form.
    pub enable_colors: bool,
    /// One line per request.
    pub requests: bool,
}

/// `logging.level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// For developers.
    Debug,
    /// What an operator wants to see.
    Info,
    /// What an operator should look at.
    Warn,
    /// What went wrong.
    Error,
}

impl LogLevel {
    /// Its name.
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
    /// Most receipts kept.
    pub ring_entries: usize,
    /// Most bytes of receipts kept.
    pub ring_bytes: usize,
    /// Most candidates kept per receipt.
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
    /// Whether lines have the hashes of the prompts' blocks.
    pub chains: bool,
    /// Whether they have the prompts' text.
    pub include_request_text: bool,
}
