//! Statistics for operators.

/// The current state of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheStats {
    /// Whether the cache is on.
    pub enabled: bool,
    /// `memory`, `redis` or `tiered`.
    pub backend_type: &'static str,
    /// Cached replies; in Redis the count stops at some hundred thousand of this cache's keys.
    pub entries: u64,
    /// Whether `entries` is complete: it is not if other processes write too, or an object store
    /// has the rest.
    pub entries_are_all: bool,
    /// Maximum number of replies in memory; `None` = only bytes bound them.
    pub capacity: Option<u64>,
    /// Bytes of the replies.
    pub size_bytes: u64,
    /// Total replies evicted from memory before they expired.
    pub evictions: u64,
    /// Total requests answered from the cache.
    pub hits: u64,
    /// Total requests without a cached reply.
    pub misses: u64,
    /// Total requests without a lookup.
    pub skips: u64,
    /// Hits over hits and misses of the last five minutes, 0 to 1.
    pub hit_rate: f64,
    /// Replies in the similarity index.
    pub semantic_entries: u64,
    /// The connections to Redis, if replies are stored there.
    pub redis: Option<RedisStats>,
}

/// Connections to Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisStats {
    /// Connections in use.
    pub active: u64,
    /// Idle connections.
    pub idle: u64,
    /// Whether the in-memory fallback is active.
    pub fallback_active: bool,
    /// Total connection errors.
    pub connection_errors: u64,
    /// Total timeouts.
    pub timeout_errors: u64,
    /// Total other errors.
    pub other_errors: u64,
}
