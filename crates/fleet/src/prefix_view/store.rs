//! Storage of the prefix view.

use std::sync::Arc;

use net::Clock;
use prefix_view::{Holder, MemoryPrefixIndex, PrefixHash, PrefixIndex, QueryCache, ViewSettings};
use prometheus_client::registry::Registry;
#[cfg(feature = "redis-cache")]
use redis_store::{RedisPrefixIndex, SharedView};

use super::RedisPool;

/// What a view in Redis needs.
#[cfg_attr(
    not(feature = "redis-cache"),
    expect(dead_code, reason = "there is no view in Redis")
)]
pub(super) struct SharedViewParts {
    pub(super) pool: Option<Arc<RedisPool>>,
    pub(super) settings: ViewSettings,
    /// The backends that count.
    pub(super) backends: Vec<Arc<str>>,
    pub(super) clock: Clock,
}

/// The prefix view in one of its forms.
#[derive(Debug)]
pub(super) enum PrefixViewStore {
    /// In this process.
    Memory {
        index: Arc<MemoryPrefixIndex>,
        prepared: Box<QueryCache>,
        clock: Clock,
    },
    /// In a Redis server that routers share.
    #[cfg(feature = "redis-cache")]
    Redis(Arc<RedisPrefixIndex>),
}

impl PrefixViewStore {
    pub(super) fn in_memory(settings: ViewSettings, clock: Clock) -> Self {
        Self::Memory {
            index: Arc::new(MemoryPrefixIndex::new(settings)),
            prepared: Box::default(),
            clock,
        }
    }

    /// Opens the view in Redis.
    #[cfg(feature = "redis-cache")]
    pub(super) fn in_redis(
        parts: SharedViewParts,
        registry: &mut Registry,
    ) -> Result<Self, String> {
        let pool = parts
            .pool
            .ok_or("kv_cache_index.backend is redis, and there are no connections to it")?;
        // The response cache uses the other half.
        let permits = pool.most_connections() / 2;
        let index = RedisPrefixIndex::start(SharedView {
            pool,
            settings: parts.settings,
            backends: parts.backends,
            permits,
            clock: parts.clock,
        });
        index.register(registry);
        Ok(Self::Redis(Arc::new(index)))
    }

    #[cfg(not(feature = "redis-cache"))]
    pub(super) fn in_redis(_: SharedViewParts, _: &mut Registry) -> Result<Self, String> {
        Err("kv_cache_index.backend is redis, and this program was built without it: build it with the feature \
             `redis-cache`, or set backend: memory"
            .to_owned())
    }

    pub(super) fn index(&self) -> Arc<dyn PrefixIndex> {
        match self {
            Self::Memory { index, .. } => Arc::clone(index) as _,
            #[cfg(feature = "redis-cache")]
            Self::Redis(index) => Arc::clone(index) as _,
        }
    }

    pub(super) fn cached_holders(&self, prefix: &PrefixHash) -> Option<Arc<[Holder]>> {
        match self {
            Self::Memory {
                prepared, clock, ..
            } => prepared.cached(prefix, clock.now()),
            #[cfg(feature = "redis-cache")]
            Self::Redis(index) => index.cached_holders(prefix),
        }
    }

    #[cfg_attr(
        not(feature = "redis-cache"),
        expect(clippy::unused_async, reason = "memory is not waited for")
    )]
    pub(super) async fn holders(&self, prefix: &PrefixHash) -> Arc<[Holder]> {
        match self {
            Self::Memory {
                index,
                prepared,
                clock,
            } => prepared.prepare(index.as_ref(), prefix, clock.now()),
            #[cfg(feature = "redis-cache")]
            Self::Redis(index) => index.holders(prefix).await,
        }
    }

    pub(super) fn is_cut_off(&self) -> bool {
        match self {
            Self::Memory { .. } => false,
            #[cfg(feature = "redis-cache")]
            Self::Redis(index) => !index.is_shared(),
        }
    }

    #[cfg_attr(
        not(feature = "redis-cache"),
        expect(clippy::unused_async, reason = "memory is not waited for")
    )]
    pub(super) async fn stop(&self) {
        match self {
            Self::Memory { .. } => {}
            #[cfg(feature = "redis-cache")]
            Self::Redis(index) => index.stop().await,
        }
    }
}
