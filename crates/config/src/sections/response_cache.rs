//! Section `response_cache`.

use std::{num::NonZeroUsize, time::Duration};

use settings::{
    Secret, ValueKind,
    kinds::{int, size},
};

use super::{CacheL1, CacheL2, CacheRedis, L1Kind};

const BYTES: ValueKind = int(1, 1 << 40);

settings::section! {
    /// Section `response_cache`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ResponseCacheSection {
        /// Keep replies and answer from them.
        enabled: bool = "false", live;
        /// Where replies are kept.
        backend: CacheBackend = "memory", restart;
        /// Most replies kept in memory; the least recently used goes first.
        capacity: NonZeroUsize = "1000" in int(1, 1 << 32), live;
        /// Most bytes of replies kept in memory, whether as the backend, as the first tier or while
        /// Redis is away.
        memory_budget: usize = "256MiB" in size(1 << 20, 1 << 40), live;
        /// How long a reply is kept.
        ttl: Duration = "5m", live;
        /// Longest reply kept, bytes.
        max_response_size: usize = "1048576" in BYTES, live;
        /// Longest stream kept, bytes.
        max_stream_buffer_size: usize = "10485760" in BYTES, live;
        /// Whether replies to requests without a temperature are kept.
        absent_temperature: AbsentTemperature = "cacheable", live;
        /// Longest time that a request waits for the cache.
        lookup_budget: Duration = "50ms", live;
        /// Key that proves that a kept reply is ours; the same for all routers that share a store.
        /// Unset: altered replies are found, made-up ones are not.
        mac_key: Option<Secret> = "~", live;
        /// The Redis or Valkey server that stores share.
        redis: CacheRedis, restart;
        /// The first tier of `backend: tiered`.
        l1: CacheL1, live;
        /// The second tier of `backend: tiered`.
        l2: CacheL2, live;
        /// What moves between the tiers.
        tiered: CacheTiering, live;
        /// Replies to prompts that mean the same.
        semantic: SemanticCache, live;
    }
}

settings::section! {
    /// Section `response_cache.tiered`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CacheTiering {
        /// Copy a reply that was found in the second tier to the first.
        promote_on_hit: bool = "true", live;
        /// How long such a copy is kept.
        l1_promotion_ttl: Duration = "5m", live;
    }
}

settings::section! {
    /// Section `response_cache.semantic`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SemanticCache {
        /// Answer also from replies to questions that mean the same.
        enabled: bool = "false", live;
        /// Least cosine between the two questions.
        threshold: f64 = "0.95", live;
        /// The model whose vectors are compared, served at `/v1/embeddings` by one of `workers`.
        /// Required where enabled.
        embedding_model: Option<String> = "~", restart;
        /// Most replies kept for it; all are compared.
        max_entries: NonZeroUsize = "256" in int(1, 4_096), live;
        /// How long they are kept.
        ttl: Duration = "300s", live;
        /// Longest that a request waits for its vector.
        timeout: Duration = "500ms", live;
    }
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

settings::words! {
    /// `response_cache.backend`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CacheBackend {
        /// Memory of this process.
        Memory = "memory",
        /// A Redis server that routers share.
        Redis = "redis",
        /// A fast tier before an object store.
        Tiered = "tiered",
    }
}

impl CacheBackend {
    /// All backends.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Redis, Self::Tiered];
}

settings::words! {
    /// `response_cache.absent_temperature`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AbsentTemperature {
        /// Cached like replies at temperature 0.
        Cacheable = "cacheable",
        /// Not cached.
        Bypass = "bypass",
    }
}
