//! The block index and the prefix view.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /admin/kv-index/stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvIndexStats {
    /// Whether `kv_cache_index` is on.
    pub enabled: bool,
    /// Its settings.
    pub config: KvIndexConfig,
    /// Content of the prefix view.
    pub index: IndexEntryStats,
    /// Event sources of the prefix view.
    pub event_sources: Vec<EventSourceReport>,
    /// Decisions by rule.
    pub routing_decisions: KvDecisionCounts,
    /// Number of queries with a measured duration.
    pub query_latency_count: u64,
    /// Number of overlap scores.
    pub overlap_score_count: u64,
    /// The overlap scores.
    pub overlap_scores: OverlapScores,
    /// Content of the block index.
    pub blocks: BlockStats,
}

/// Settings of the prefix view.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KvIndexConfig {
    /// Where the view is.
    pub backend: KvIndexBackend,
    /// Most entries.
    pub max_entries: usize,
    /// Lifetime of an entry, seconds.
    pub entry_ttl_seconds: u64,
    /// Number of configured event sources.
    pub event_sources_count: usize,
    /// Weights of the scores.
    pub scoring: ScoringConfig,
}

/// Where the prefix view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvIndexBackend {
    /// In this process.
    Memory,
    /// In Redis, shared by routers.
    Redis,
}

/// Weights of the scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScoringConfig {
    /// Weight of cached tokens.
    pub overlap_weight: f64,
    /// Weight of a low load.
    pub load_weight: f64,
    /// Weight of requests that succeeded.
    pub health_weight: f64,
    /// Below this overlap the scores do not decide.
    pub min_overlap_threshold: f64,
}

/// Content of the prefix view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IndexEntryStats {
    /// Prefixes.
    pub prefix_count: u64,
    /// Pairs of prefix and backend.
    pub entry_count: u64,
    /// Queries with a holder, since the start.
    pub total_hits: u64,
    /// Entries evicted for lack of room, since the start.
    pub total_evictions: u64,
}

/// One event source of the prefix view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventSourceReport {
    /// The worker's name.
    pub backend_name: Arc<str>,
    /// Whether it is connected.
    pub connected: bool,
    /// Received events, including dropped ones.
    pub events_received: u64,
    /// Dropped events.
    pub events_dropped: u64,
    /// Arrival of the last event, RFC 3339.
    pub last_event_at: Option<String>,
    /// Connections after the first.
    pub reconnect_count: u64,
    /// Messages per second over the last minute.
    pub events_per_second: f64,
}

/// Decisions by rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvDecisionCounts {
    /// Cache knowledge decided.
    pub kv_aware: u64,
    /// Another rule decided.
    pub fallback: u64,
    /// All of them.
    pub total: u64,
}

/// Overlap scores of the decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverlapScores {
    /// Their mean; `null` without any.
    pub mean: Option<f64>,
    /// Their numbers by range, ascending.
    pub distribution: Vec<CountRange>,
}

/// Number of values in a range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CountRange {
    /// Inclusive upper end.
    pub up_to: f64,
    /// Values in the range.
    pub count: u64,
}

/// Content of the block index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockStats {
    /// Namespaces in use.
    pub namespaces: u64,
    /// Distinct blocks with a holder.
    pub distinct: u64,
    /// Pairs of block and target.
    pub memberships: u64,
    /// Speculative entries.
    pub speculative: u64,
    /// Predicted entries.
    pub predicted: u64,
    /// Blocks announced behind an unknown parent, since the start.
    pub orphans: u64,
    /// Bytes in use, estimated.
    pub bytes: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
    /// Blocks dropped or refused for lack of room, since the start.
    pub shed: u64,
}

/// `GET /admin/kv-index/backends`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvIndexBackends {
    /// Whether `kv_cache_index` is on.
    pub enabled: bool,
    /// One entry per event source.
    pub backends: Vec<BackendReport>,
}

/// One backend of the prefix view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendReport {
    /// The worker's name.
    pub backend_name: Arc<str>,
    /// Its connection.
    pub connection: BackendConnection,
    /// Its events.
    pub events: BackendEvents,
    /// Its entries.
    pub held: BackendHoldings,
}

/// Connection of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendConnection {
    /// Whether it is connected.
    pub connected: bool,
    /// Connections after the first.
    pub reconnect_count: u64,
    /// Arrival of the last event, RFC 3339.
    pub last_event_at: Option<String>,
}

/// Events of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendEvents {
    /// Received, including dropped ones.
    pub received: u64,
    /// Applied.
    pub processed: u64,
    /// Dropped.
    pub dropped: u64,
    /// Events that added an entry.
    pub index_created: u64,
    /// Events that removed an entry.
    pub index_evicted: u64,
}

/// Entries of a backend by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendHoldings {
    /// In the accelerator's memory.
    pub gpu_hot: u64,
    /// In storage.
    pub storage_warm: u64,
}

/// `POST /admin/kv-index/clear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvIndexCleared {
    /// Always true; a failure is an error.
    pub success: bool,
    /// Entries before the call.
    pub entries_before_clear: u64,
    /// Removed entries.
    pub cleared_entries: u64,
}
