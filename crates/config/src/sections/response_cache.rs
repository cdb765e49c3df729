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
        /// Cache replies and answer equal requests from the cache.
        enabled: bool = "false", live;
        /// Storage of replies.
        backend: CacheBackend = "memory", restart;
        /// Maximum number of replies in memory; the least recently used is evicted.
        capacity: NonZeroUsize = "1000" in int(1, 1 << 32), live;
        /// Maximum bytes of replies in memory, whether memory is the backend, the first tier or the
        /// fallback for Redis.
        memory_budget: usize = "256MiB" in size(1 << 20, 1 << 40), live;
        /// Lifetime of a cached reply.
        ttl: Duration = "5m", live;
        /// Largest cached reply, in bytes.
        max_response_size: usize = "1048576" in BYTES, live;
        /// Largest cached stream, in bytes.
        max_stream_buffer_size: usize = "10485760" in BYTES, live;
        /// Whether replies to requests without a temperature are cached.
        absent_temperature: AbsentTemperature = "cacheable", live;
        /// Longest wait of a request for the cache.
        lookup_budget: Duration = "50ms", live;
        /// Key that authenticates cached replies; equal for all routers that share a store. Unset:
        /// altered replies are detected, forged ones are not.
        mac_key: Option<Secret> = "~", live;
        /// Allow a store that routers share without `mac_key` where there are several tenants:
        /// whoever can write to it can make up a reply to any of them.
        insecure: bool = "false", live;
        /// Redis or Valkey server that the stores share.
        redis: CacheRedis, restart;
        /// First tier of `backend: tiered`.
        l1: CacheL1, live;
        /// Second tier of `backend: tiered`.
        l2: CacheL2, live;
        /// Copies between the two tiers.
        tiered: CacheTiering, live;
        /// Similarity hits: replies to other prompts with the same meaning.
        semantic: SemanticCache, live;
    }
}

settings::section! {
    /// Section `response_cache.tiered`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CacheTiering {
        /// Copy a reply that was found in the second tier to the first.
        promote_on_hit: bool = "true", live;
        /// Lifetime of such a copy.
        l1_promotion_ttl: Duration = "5m", live;
    }
}

settings::section! {
    /// Section `response_cache.semantic`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SemanticCache {
        /// Answer also from replies to questions with the same meaning.
        enabled: bool = "false", live;
        /// Least cosine between the two questions.
        threshold: f64 = "0.95", live;
        /// Embedding model, served at `/v1/embeddings` by one of `workers`. Required if enabled.
        embedding_model: Option<String> = "~", restart;
        /// Maximum number of replies for similarity hits; all of them are compared.
        max_entries: NonZeroUsize = "256" in int(1, 4_096), live;
        /// Lifetime of these replies.
        ttl: Duration = "300s", live;
        /// Longest wait of a request for its embedding.
        timeout: Duration = "500ms", live;
    }
}

impl ResponseCacheSection {
    /// Returns the settings of similarity lookups; `None`: they are off.
    pub fn similarity(&self) -> Option<&SemanticCache> {
        (self.enabled && self.semantic.enabled).then_some(&self.semantic)
    }

    /// Returns whether replies are in a store where others than this router may write, and nothing
    /// shows that one is forged. An empty key proves nothing.
    pub fn is_open_to_forgery(&self) -> bool {
        let key = self.mac_key.as_ref().map(Secret::expose);
        self.enabled && self.backend != CacheBackend::Memory && key.is_none_or(str::is_empty)
    }

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
