//! Section `response_cache`.

use std::{num::NonZeroUsize, time::Duration};

use crate::{RedisSection, Secret};

/// Section `response_cache`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseCacheSection {
    /// Whether replies are kept.
    pub enabled: bool,
    /// Where they are kept.
    pub backend: CacheBackend,
    /// Most replies in memory.
    pub capacity: NonZeroUsize,
    /// Most bytes of replies in memory.
    pub memory_budget: usize,
    /// How long a reply is kept.
    pub ttl: Duration,
    /// Longest reply kept, bytes.
    pub max_response_size: usize,
    /// Longest stream kept, bytes.
    pub max_stream_buffer_size: usize,
    /// What becomes of replies to requests without a temperature.
    pub absent_temperature: AbsentTemperature,
    /// Longest wait of a request for the cache.
    pub lookup_budget: Duration,
    /// What proves that a kept reply is ours.
    pub mac_key: Option<Secret>,
    /// The server of `backend: redis`, and of a first tier that is there.
    pub redis: CacheRedis,
    /// The first tier of `backend: tiered`.
    pub l1: CacheL1,
    /// Its second tier.
    pub l2: CacheL2,
    /// What moves between them.
    pub tiered: CacheTiering,
    /// Replies to prompts that mean the same.
    pub semantic: SemanticCache,
}

impl ResponseCacheSection {
    /// Whether the backend lies in Redis, in part at least.
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
    /// This process.
    Memory,
    /// A server that routers share.
    Redis,
    /// A quick tier before an object store.
    Tiered,
}

impl CacheBackend {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Redis, Self::Tiered];

    /// Its name.
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
    /// They are kept as those to a temperature of 0.
    Cacheable,
    /// They are not.
    Bypass,
}

/// `response_cache.redis`, as far as it is about replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRedis {
    /// The server; there is one wherever the cache is on and lies in Redis.
    pub server: Option<RedisSection>,
    /// What keys begin with: visible ASCII, no pattern.
    pub key_prefix: String,
    /// What stands in for it; `None` = nothing does.
    pub fallback: Option<CacheFallback>,
}

/// Memory in the place of a server that is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFallback {
    /// Most replies kept there.
    pub capacity: NonZeroUsize,
    /// How long they are kept there.
    pub ttl: Duration,
}

/// `response_cache.l1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheL1 {
    /// Where it is.
    pub kind: L1Kind,
    /// Longest reply kept there, bytes.
    pub max_value_size: usize,
}

/// `response_cache.l1.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1Kind {
    /// This process.
    Memory,
    /// The server of `response_cache.redis`.
    Redis,
}

/// `response_cache.l2`: an object store that speaks S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheL2 {
    /// Where it is; set wherever the cache is on and tiered.
    pub endpoint: Option<String>,
    /// The bucket in it; likewise.
    pub bucket: Option<String>,
    /// What names of objects begin with.
    pub key_prefix: String,
    /// The region that requests are signed for.
    pub region: String,
    /// Who asks; `None` = requests are not signed.
    pub credentials: Option<S3Credentials>,
    /// How long a reply is kept there.
    pub ttl_override: Option<Duration>,
}

/// What requests to an object store are signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Credentials {
    /// Who asks.
    pub access_key: Secret,
    /// What proves it.
    pub secret_key: Secret,
}

/// `response_cache.tiered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheTiering {
    /// Whether what was found in the second tier is copied to the first.
    pub promote_on_hit: bool,
    /// How long such a copy is kept.
    pub l1_promotion_ttl: Duration,
}

/// `response_cache.semantic`.
#[derive(Clone, Debug, PartialEq)]
pub struct SemanticCache {
    /// Whether replies to prompts that mean the same are used.
    pub enabled: bool,
    /// How alike they must be, 0 to 1.
    pub threshold: f64,
    /// The model that says so.
    pub embedding_model: Option<String>,
    /// Most replies kept for it.
    pub max_entries: NonZeroUsize,
    /// How long they are kept.
    pub ttl: Duration,
    /// Time for one answer of that model.
    pub timeout: Duration,
}
