//! The stores of one backend, built from the settings. Dropping the engine ends its tasks.

mod build;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use config::{CacheBackend, L1Kind, ResponseCacheSection};
use net::Clock;
use tokio::time::Instant;

pub(crate) use self::build::RemoteStore;
use crate::{
    CacheKey, CacheLookup, CacheStartError, RedisPool, Relief, StoreFault,
    counters::CacheCounters,
    entry_count,
    generation::Generations,
    hmac_envelope::HmacEnvelope,
    store::{StoreFill, StoreLookup, StoreStats, lru::StoreBounds, memory::MemoryStore},
    tasks::Tasks,
    writer::WriteGuard,
};

/// The current settings.
pub(crate) type CurrentSettings = ArcSwap<ResponseCacheSection>;

/// The inputs of the stores that outlive them.
#[derive(Debug)]
pub(crate) struct CacheParts {
    pub(crate) current: Arc<CurrentSettings>,
    pub(crate) seal: Arc<ArcSwap<HmacEnvelope>>,
    pub(crate) clock: Clock,
    pub(crate) redis: Option<Arc<RedisPool>>,
    pub(crate) tally: Arc<CacheCounters>,
    pub(crate) generations: Arc<Generations>,
}

#[derive(Debug)]
pub(crate) struct CacheEngine {
    /// The part in this process: the backend itself, the first tier, or the fallback for Redis.
    memory: Arc<MemoryStore>,
    /// `None` for the memory backend.
    behind: Option<RemoteStore>,
    /// The task that counts the entries of the remote store.
    _census: Tasks,
}

impl CacheEngine {
    /// `parts.current` already holds the new settings.
    pub(crate) fn start(relief: Relief, parts: &CacheParts) -> Result<Self, CacheStartError> {
        let settings = parts.current.load_full();
        let bounds = bounds(&settings, relief);
        let memory = Arc::new(MemoryStore::new(
            bounds,
            Arc::clone(&parts.generations),
            parts.clock,
        ));
        let behind = match settings.backend {
            CacheBackend::Memory => None,
            CacheBackend::Redis => Some(build::redis(&settings, &memory, parts)?),
            CacheBackend::Tiered => Some(build::tiered(&settings, &memory, parts)?),
        };
        let census = Tasks::default();
        if let Some(behind) = behind
            .as_ref()
            .filter(|behind| !behind.store.abilities().counts)
        {
            census.start(entry_count::run_entry_count(
                Arc::clone(&behind.store),
                Arc::clone(&parts.tally),
            ));
        }
        Ok(Self {
            memory,
            behind,
            _census: census,
        })
    }

    /// Returns the answer, if it is known without a wait.
    pub(crate) fn get_in_process(&self, key: &CacheKey) -> Option<CacheLookup> {
        let found = |entry| CacheLookup::Found(entry);
        self.behind.is_none().then(|| {
            self.memory
                .find(key)
                .map_or(CacheLookup::NotFound, |it| found(it.entry))
        })
    }

    pub(crate) async fn get(
        &self,
        key: &CacheKey,
        waited: Duration,
        parts: &CacheParts,
    ) -> CacheLookup {
        let Some(behind) = &self.behind else {
            return self.get_in_process(key).unwrap_or(CacheLookup::Unavailable);
        };
        let until = Instant::now() + parts.current.load().lookup_budget.saturating_sub(waited);
        let ask = StoreLookup {
            key: *key,
            until,
            generation: parts.generations.of_copies(),
        };
        match behind.store.get(ask).await {
            Ok(Some(found)) => CacheLookup::Found(found.entry),
            Ok(None) => CacheLookup::NotFound,
            Err(fault) => {
                tracing::debug!(%fault, "nothing could be looked up");
                CacheLookup::Unavailable
            }
        }
    }

    pub(crate) fn put(&self, fill: StoreFill, held: WriteGuard) {
        match &self.behind {
            None => self.memory.keep(fill),
            Some(behind) => {
                // If memory also serves lookups, it gets the entry at once, and the guard need not
                // wait for the rest.
                let held = match behind.store.near(&fill) {
                    Some(near) => {
                        self.memory.keep(near);
                        None
                    }
                    None => Some(held),
                };
                behind.writer.keep(fill, held);
            }
        }
    }

    /// Clears the stores. The caller has raised the generation.
    pub(crate) async fn clear(&self) -> Result<u64, StoreFault> {
        match &self.behind {
            None => Ok(self.memory.empty()),
            Some(behind) => {
                // Immediately, however long the rest takes.
                let near = self.memory.empty();
                behind.writer.clear().await.map(|far| far.max(near))
            }
        }
    }

    pub(crate) fn reconfigure(&self, settings: &ResponseCacheSection, relief: Relief) {
        self.memory.set_bounds(bounds(settings, relief));
    }

    /// Returns the statistics of the part in this process.
    pub(crate) fn held(&self) -> StoreStats {
        match &self.behind {
            None => self.memory.held(),
            Some(behind) => behind.store.stats(),
        }
    }

    pub(crate) fn absent(&self) -> Vec<&'static str> {
        self.behind
            .as_ref()
            .map(|behind| behind.store.absent())
            .unwrap_or_default()
    }

    /// Returns the number of entries in all stores.
    pub(crate) async fn count(&self, tally: &CacheCounters) -> u64 {
        match &self.behind {
            Some(behind) if !behind.store.abilities().counts => {
                entry_count::now(&*behind.store, tally).await
            }
            _ => self.held().entries,
        }
    }

    /// Returns whether that number is complete.
    pub(crate) fn is_counted(&self) -> bool {
        self.behind
            .as_ref()
            .is_none_or(|behind| behind.store.abilities().counts)
    }

    /// Queues the removal of an entry.
    pub(crate) fn remove(&self, key: CacheKey) {
        self.memory.remove(&key);
        if let Some(behind) = &self.behind {
            behind.writer.remove(key);
        }
    }

    /// Writes the queued entries within a short time, and ends.
    pub(crate) async fn stop(&self) {
        if let Some(behind) = &self.behind {
            behind.writer.stop().await;
        }
    }
}

/// Returns the bounds of the backend's memory, if it has any: its own, a first tier, or the
/// fallback for Redis.
fn bounds(settings: &ResponseCacheSection, relief: Relief) -> StoreBounds {
    let bounds = StoreBounds {
        entries: entries(settings).unwrap_or(usize::MAX),
        bytes: settings.memory_budget,
    };
    if relief == Relief::Nothing {
        bounds
    } else {
        bounds.half()
    }
}

/// Returns the maximum number of entries in memory; `None` = only bytes bound them.
pub(crate) fn entries(settings: &ResponseCacheSection) -> Option<usize> {
    match (settings.backend, settings.l1.kind) {
        (CacheBackend::Memory, _) => Some(settings.capacity.get()),
        (CacheBackend::Tiered, L1Kind::Memory) => None,
        (CacheBackend::Redis | CacheBackend::Tiered, _) => {
            settings.redis.fallback().map(|it| it.capacity.get())
        }
    }
}
