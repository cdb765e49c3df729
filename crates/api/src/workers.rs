//! Workers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// `GET /admin/workers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerReports {
    /// In the order of the configuration.
    pub workers: Vec<WorkerReport>,
}

/// `GET /admin/workers/{name}`: the state of one worker in fleet, router and index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerReport {
    /// Which worker it is, and its state.
    #[serde(flatten)]
    pub identity: WorkerIdentity,
    /// What it serves.
    #[serde(flatten)]
    pub service: WorkerService,
    /// The engine's own report.
    pub engine: EngineReport,
    /// The router's account of its load.
    pub load: WorkerLoad,
    /// Blocks that the index has for it, by tier.
    pub warm_blocks: TierBlocks,
    /// Learned rates.
    pub rates: WorkerRates,
    /// Its health.
    #[serde(flatten)]
    pub health: WorkerHealth,
}

/// Which worker it is, and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerIdentity {
    /// Its name.
    pub name: Arc<str>,
    /// Its URL, without secrets.
    pub url: String,
    /// Kind of engine.
    #[serde(rename = "type")]
    pub engine_type: Name,
    /// Whether it takes requests, and why not.
    #[schemars(extend("enum" = ["ready", "warming_up", "down", "unknown", "draining", "ejected"]))]
    pub state: Name,
    /// When the state began, RFC 3339.
    pub since: String,
}

/// What a worker serves, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerService {
    /// Ids of its models.
    pub models: Vec<Arc<str>>,
    /// Ids of its LoRA adapters.
    pub loras: Vec<Arc<str>>,
    /// How it gets requests of the Messages API.
    pub messages: Name,
    /// Its role where prefill and decode are separate.
    pub role: Name,
    /// Its configured weight.
    pub weight: f64,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Number of data-parallel ranks.
    pub dp_ranks: u32,
}

/// Whether a worker and the knowledge of it can be relied on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerHealth {
    /// Where the knowledge of its cache comes from.
    #[schemars(extend("enum" = ["events", "predicted"]))]
    pub cache_source: Name,
    /// The circuit breaker.
    #[schemars(extend("enum" = ["closed", "open", "half_open"]))]
    pub circuit: Name,
    /// Agreement of predicted and actual cached tokens: that of its worst rank.
    #[schemars(extend("enum" = ["ok", "drifting", "downgraded", "recovering", "no_data"]))]
    pub parity: Name,
    /// Whether it keeps the cached blocks of tenants apart by their salts; `unknown` also where that
    /// is not probed: without `tenants.isolation: strict`.
    #[schemars(extend("enum" = ["honoured", "ignored", "unknown"]))]
    pub salt: Name,
    /// Its last error; of a worker that was discovered or registered a fixed word, such as `refused`,
    /// `forbidden_address`, `timed_out` or `unexpected_status`.
    pub last_error: Option<Arc<str>>,
}

/// Values that an engine reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EngineReport {
    /// Its version.
    pub version: Option<Arc<str>>,
    /// KV blocks of one rank.
    pub num_blocks: Option<u32>,
    /// Share of the KV blocks in use, 0 to 1.
    pub kv_usage_ratio: Option<f64>,
    /// Running requests.
    pub running: Option<u32>,
    /// Waiting requests.
    pub waiting: Option<u32>,
}

/// Load that the router has sent and not yet seen end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerLoad {
    /// Requests.
    pub in_flight: u32,
    /// Prompt tokens without a first token yet.
    pub queued_prefill_tokens: u64,
    /// Blocks of requests that decode.
    pub decode_blocks: u64,
}

/// Blocks by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierBlocks {
    /// Memory of the accelerator.
    pub device: u64,
    /// Memory of the host.
    pub host: u64,
    /// Disk of the host.
    pub disk: u64,
    /// Storage shared by engines.
    pub remote: u64,
}

/// Rates learned from the times of first tokens and of replies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerRates {
    /// Prefill rate, tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Constant part of the time to first token, ms.
    pub overhead_ms: f64,
    /// Slowdown of a decode step per sequence, ms.
    pub decode_ms_per_sequence: f64,
    /// Number of measured requests.
    pub samples: u64,
    /// Whether the rates are measured; else they are the configured priors.
    pub learned: bool,
}

/// `DELETE /admin/workers/{name}`, `POST .../drain` and `.../resume`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerRemoval {
    /// The worker's name.
    pub name: String,
    /// Its state; `removed` if it is no longer known.
    #[schemars(extend("enum" = ["ready", "warming_up", "down", "unknown", "draining", "ejected", "removed"]))]
    pub state: Name,
    /// Its running requests.
    pub in_flight: u64,
    /// Whether it is drained and has no running request.
    pub safe_to_remove: bool,
    /// Cached tokens that its end would cost. Remote storage is shared and outlives it.
    pub warm_tokens_lost: u64,
}
