//! What operators are shown.

/// The cache as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheStats {
    /// Whether replies are kept.
    pub enabled: bool,
    /// `memory`, `redis` or `tiered`.
    pub backend_type: &'static str,
    /// Replies kept; in Redis at most some hundred thousand of ours are counted.
    pub entries: u64,
    /// Whether these are all: not where others write too, or an object store has the rest.
    pub entries_are_all: bool,
    /// Most replies in memory; `None` = bytes alone bound them.
    pub capacity: Option<u64>,
    /// Bytes that they take.
    pub size_bytes: u64,
    /// Replies that had to leave memory before their time, ever.
    pub evictions: u64,
    /// Requests that were answered from the cache, ever.
    pub hits: u64,
    /// Requests whose answer was not there.
    pub misses: u64,
    /// Requests that were not looked for.
    pub skips: u64,
    /// Hits over hits and misses of the last five minutes, 0 to 1.
    pub hit_rate: f64,
    /// Replies that are found by what their question means.
    pub semantic_entries: u64,
    /// The server, where replies lie in Redis.
    pub redis: Option<RedisStats>,
}

/// Connections to Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisStats {
    /// In use.
    pub active: u64,
    /// Waiting for use.
    pub idle: u64,
    /// Whether memory stands in.
    pub fallback_active: bool,
    /// Faults of the connection, ever.
    pub connection_errors: u64,
    /// Answers that did not come in time.
    pub timeout_errors: u64,
    /// Other faults.
    pub other_errors: u64,
}
