//! The stores of one backend, made of the settings. Whoever drops it ends what runs in it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use config::{CacheBackend, L1Kind, ResponseCache};
use net::Clock;

use crate::{
    CacheKey, Entry, Generation, Lookup, RedisPool, Relief, StartError, StoreFault,
    generation::Generations,
    store::{Fill, StoreStats, memory::MemoryStore, shelf::Bounds},
    tally::Tally,
};

/// The settings in force.
pub(crate) type InForce = ArcSwap<ResponseCache>;

/// What stores are made with, and what outlives them.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) in_force: Arc<InForce>,
    pub(crate) clock: Clock,
    pub(crate) redis: Option<Arc<RedisPool>>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) generations: Arc<Generations>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    memory: Arc<MemoryStore>,
}

impl Engine {
    pub(crate) fn start(settings: &ResponseCache, relief: Relief, parts: &Parts) -> Result<Self, StartError> {
        match settings.backend {
            CacheBackend::Memory => {}
            CacheBackend::Redis | CacheBackend::Tiered => {
                return Err(StartError::NoStore { store: "redis", key: "response_cache.redis.url" });
            }
        }
        let memory = MemoryStore::new(bounds(settings, relief), Arc::clone(&parts.generations), parts.clock);
        Ok(Self { memory: Arc::new(memory) })
    }

    pub(crate) async fn get(&self, key: &CacheKey) -> Lookup {
        self.near(key).unwrap_or(Lookup::Unavailable)
    }

    /// The answer, where it takes no wait to know it.
    pub(crate) fn near(&self, key: &CacheKey) -> Option<Lookup> {
        Some(self.memory.find(key).map_or(Lookup::NotFound, |found| Lookup::Found(found.entry)))
    }

    pub(crate) fn put(&self, key: CacheKey, entry: Entry, begun: Generation, settings: &ResponseCache) {
        self.memory.keep(Fill { key, entry, ttl: settings.ttl, begun });
    }

    pub(crate) async fn clear(&self) -> Result<u64, StoreFault> {
        Ok(self.memory.empty())
    }

    pub(crate) fn refit(&self, settings: &ResponseCache, relief: Relief) {
        self.memory.set_bounds(bounds(settings, relief));
    }

    /// What lies in this process.
    pub(crate) fn held(&self) -> StoreStats {
        self.memory.held()
    }

    /// Writes what is still to be written, if that is quickly done, and ends.
    pub(crate) async fn stop(&self) {}
}

/// Of the memory that a backend has, if it has any: of its own, as a first tier, or in the place of Redis.
fn bounds(settings: &ResponseCache, relief: Relief) -> Bounds {
    let bounds = Bounds { entries: entries(settings).unwrap_or(usize::MAX), bytes: settings.memory_budget };
    if relief == Relief::Nothing { bounds } else { bounds.half() }
}

/// Most entries in memory; `None` = bytes alone bound them.
pub(crate) fn entries(settings: &ResponseCache) -> Option<usize> {
    match (settings.backend, settings.l1.kind) {
        (CacheBackend::Memory, _) => Some(settings.capacity.get()),
        (CacheBackend::Tiered, L1Kind::Memory) => None,
        (CacheBackend::Redis | CacheBackend::Tiered, _) => settings.redis.fallback.map(|it| it.capacity.get()),
    }
}
