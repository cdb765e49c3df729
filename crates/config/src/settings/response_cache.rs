//! Section `response_cache`.

use std::{num::NonZeroUsize, time::Duration};

use crate::{RedisSection, Secret};

/// Section `response_cache`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseCacheSection {
    /// Whether replies are cached.
    pub enabled: bool,
    /// Storage of replies.
    pub backend: CacheBackend,
    /// Most replies in memory.
    pub capacity: NonZeroUsize,
    /// Most bytes of replies in memory.
    pub memory_budget: usize,
    /// Lifetime of a reply.
    pub ttl: Duration,
    /// Longest reply cached, bytes.
    pub max_response_size: usize,
    /// Longest stream cached, bytes.
    pub max_stream_buffer_size: usize,
    /// Treatment of replies to requests without a temperature.
    pub absent_temperature: AbsentTemperature,
    /// Longest wait of a request for the cache.
    pub lookup_budget: Duration,
    /// Key that authenticates cached replies as ours.
    pub mac_key: Option<Secret>,
    /// Server of `backend: redis`, and of a first tier in Redis.
    pub redis: CacheRedis,
    /// First tier of `backend: tiered`.
    pub l1: CacheL1,
    /// Second tier.
    pub l2: CacheL2,
    /// Movement of replies between the tiers.
    pub tiered: CacheTiering,
    /// Similarity hits.
    pub semantic: SemanticCache,
}

impl ResponseCacheSection {
    /// Returns whether the backend is in Redis, at least in part.
    pub fn is_in_redis(&self) -> bool {
        match self.backend {
            CacheBackend::Memory => false,
            CacheBackend::Redis => true,
            CacheBackend::Tiered => self.l1.kind == L1Kind::Redis,
        }
    }
}

/// `response_cache.backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheBackend {
    /// Memory of this process.
    Memory,
    /// A Redis server that routers share.
    Redis,
    /// A fast tier before an object store.
    Tiered,
}

impl CacheBackend {
    /// All backends.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Redis, Self::Tiered];

    /// Returns the backend's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Tiered => "tiered",
        }
    }
}

/// `response_cache.absent_temperature`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsentTemperature {
    /// Cached like replies at temperature 0.
    Cacheable,
    /// Not cached.
    Bypass,
}

/// The keys of `response_cache.redis` about replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRedis {
    /// The server; always set if the cache is on and in Redis.
    pub server: Option<RedisSection>,
    /// Prefix of keys: visible ASCII, no pattern.
    pub key_prefix: String,
    /// Fallback for the server; `None` = none.
    pub fallback: Option<CacheFallback>,
}

/// Memory that replaces an unavailable server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFallback {
    /// Most replies in it.
    pub capacity: NonZeroUsize,
    /// Lifetime of replies in it.
    pub ttl: Duration,
}

/// `response_cache.l1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheL1 {
    /// Storage of the tier.
    pub kind: L1Kind,
    /// Longest reply stored in it, bytes.
    pub max_value_size: usize,
}

/// `response_cache.l1.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1Kind {
    /// Memory of this process.
    Memory,
    /// The server of `response_cache.redis`.
    Redis,
}

/// `response_cache.l2`: an object store with the S3 API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheL2 {
    /// Its endpoint; set whenever the cache is on and tiered.
    pub endpoint: Option<String>,
    /// Its bucket; set likewise.
    pub bucket: Option<String>,
    /// Prefix of object names.
    pub key_prefix: String,
    /// Region for which requests are signed.
    pub region: String,
    /// Credentials; `None` = requests are not signed.
    pub credentials: Option<S3Credentials>,
    /// Lifetime of a reply in it.
    pub ttl_override: Option<Duration>,
}

/// Credentials that sign requests to an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Credentials {
    /// Access key id.
    pub access_key: Secret,
    /// Secret key.
    pub secret_key: Secret,
}

/// `response_cache.tiered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheTiering {
    /// Whether a hit in the second tier is copied to the first.
    pub promote_on_hit: bool,
    /// Lifetime of such a copy.
    pub l1_promotion_ttl: Duration,
}

/// `response_cache.semantic`.
#[derive(Clone, Debug, PartialEq)]
pub struct SemanticCache {
    /// Whether similarity hits are served.
    pub enabled: bool,
    /// Least similarity of a hit, 0 to 1.
    pub threshold: f64,
    /// Embedding model that measures similarity.
    pub embedding_model: Option<String>,
    /// Most replies indexed for it.
    pub max_entries: NonZeroUsize,
    /// Lifetime of their entries.
    pub ttl: Duration,
    /// Time limit for one answer of that model.
    pub timeout: Duration,
}
