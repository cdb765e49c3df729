//! The response cache.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// `GET /admin/response-cache/stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResponseCacheStats {
    /// Whether the cache is on.
    pub enabled: bool,
    /// Where replies are stored.
    pub backend_type: Name,
    /// Stored replies.
    pub entries: u64,
    /// Most replies in memory.
    pub capacity: usize,
    /// Requests by result.
    pub requests: CacheRequests,
    /// Hits as a share of the looked-up requests since the start, with four decimals.
    pub hit_rate: String,
    /// Replies evicted before they expired, since the start.
    pub evictions: u64,
    /// Bytes of the stored replies.
    pub size_bytes: u64,
    /// The settings.
    pub config: CacheConfig,
    /// The connections to Redis, if replies are stored there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis: Option<RedisReport>,
    /// Hits as a share of the looked-up requests of the last five minutes, 0 to 1.
    pub recent_hit_rate: f64,
    /// Replies in the similarity index.
    pub semantic_entries: u64,
}

/// Requests since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheRequests {
    /// Answered from the cache.
    pub hit: u64,
    /// Looked up and not found.
    pub miss: u64,
    /// Not looked up.
    pub skip: u64,
    /// All of them.
    pub total: u64,
}

/// Settings of the response cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheConfig {
    /// Where replies are stored.
    pub backend: Name,
    /// Lifetime of a reply, such as `5m`.
    pub ttl: String,
    /// Most replies in memory.
    pub capacity: usize,
    /// Longest stored reply, bytes.
    pub max_response_size: usize,
    /// Longest stored stream, bytes.
    pub max_stream_buffer_size: usize,
}

/// Connections to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RedisReport {
    /// Number of connections.
    pub connections: RedisConnections,
    /// Whether replies are stored in memory because Redis does not answer.
    pub fallback_active: bool,
    /// Errors since the start.
    pub errors: RedisErrors,
}

/// Numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RedisConnections {
    /// In use.
    pub active: u64,
    /// Idle.
    pub idle: u64,
}

/// Errors by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RedisErrors {
    /// No connection.
    pub connection: u64,
    /// No answer in time.
    pub timeout: u64,
    /// All others.
    pub other: u64,
}

/// `POST /admin/response-cache/invalidate` and `DELETE /admin/response-cache/entries`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheCleared {
    /// Always true; a failure is an error.
    pub success: bool,
    /// What was done.
    #[schemars(extend("enum" = ["clear_all", "clear_tenant", "clear_model", "clear_tenant_model"]))]
    pub action: Name,
    /// Removed replies.
    pub cleared_entries: u64,
}
