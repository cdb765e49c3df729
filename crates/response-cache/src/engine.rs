//! The stores of one backend, built from the settings. Dropping the engine ends its tasks.

mod build;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use config::{CacheBackend, L1Kind, ResponseCacheSection};
use net::Clock;
use tokio::time::Instant;

pub(crate) use self::build::RemoteStore;
use crate::{
    CacheKey, CacheLookup, CacheSelection, CacheStartError, RedisPool, Relief, StoreFault,
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
    pub(crate) counters: Arc<CacheCounters>,
    pub(crate) generations: Arc<Generations>,
}

#[derive(Debug)]
pub(crate) struct CacheEngine {
    /// The part in this process: the backend itself, the first tier, or the fallback for Redis.
    memory: Arc<MemoryStore>,
    /// `None` for the memory backend.
    remote: Option<RemoteStore>,
    /// The task that counts the entries of the remote store.
    _counting: Tasks,
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
        let remote = match settings.backend {
            CacheBackend::Memory => None,
            CacheBackend::Redis => Some(build::redis(&settings, &memory, parts)?),
            CacheBackend::Tiered => Some(build::tiered(&settings, &memory, parts)?),
        };
        let counting = Tasks::default();
        if let Some(remote) = remote
            .as_ref()
            .filter(|remote| !remote.store.capabilities().counts)
        {
            counting.start(entry_count::run_entry_count(
                Arc::clone(&remote.store),
                Arc::clone(&parts.counters),
            ));
        }
        Ok(Self {
            memory,
            remote,
            _counting: counting,
        })
    }

    /// Returns the answer, if it is known without a wait.
    pub(crate) fn get_in_process(&self, key: &CacheKey) -> Option<CacheLookup> {
        let found = |entry| CacheLookup::Found(entry);
        self.remote.is_none().then(|| {
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
        let Some(remote) = &self.remote else {
            return self.get_in_process(key).unwrap_or(CacheLookup::Unavailable);
        };
        let until = Instant::now() + parts.current.load().lookup_budget.saturating_sub(waited);
        let lookup = StoreLookup {
            key: *key,
            until,
            generation: parts.generations.of_copies(),
        };
        match remote.store.get(lookup).await {
            Ok(Some(found)) => CacheLookup::Found(found.entry),
            Ok(None) => CacheLookup::NotFound,
            Err(fault) => {
                tracing::debug!(%fault, "nothing could be looked up");
                CacheLookup::Unavailable
            }
        }
    }

    pub(crate) fn put(&self, fill: StoreFill, guard: WriteGuard) {
        match &self.remote {
            None => self.memory.insert(fill),
            Some(remote) => {
                // If memory also serves lookups, it gets the entry at once, and the guard need not
                // wait for the rest.
                let guard = match remote.store.near(&fill) {
                    Some(near) => {
                        self.memory.insert(near);
                        None
                    }
                    None => Some(guard),
                };
                remote.writer.write(fill, guard);
            }
        }
    }

    /// Removes the selected entries. The caller has raised the generation.
    pub(crate) async fn clear(&self, selection: CacheSelection) -> Result<u64, StoreFault> {
        match &self.remote {
            None => Ok(self.memory.empty(selection)),
            Some(remote) => {
                // Immediately, however long the rest takes.
                let near = self.memory.empty(selection);
                remote
                    .writer
                    .clear(selection)
                    .await
                    .map(|far| far.max(near))
            }
        }
    }

    pub(crate) fn reconfigure(&self, settings: &ResponseCacheSection, relief: Relief) {
        self.memory.set_bounds(bounds(settings, relief));
    }

    /// Returns the statistics of the part in this process.
    pub(crate) fn local_stats(&self) -> StoreStats {
        match &self.remote {
            None => self.memory.local_stats(),
            Some(remote) => remote.store.stats(),
        }
    }

    pub(crate) fn absent(&self) -> Vec<&'static str> {
        self.remote
            .as_ref()
            .map(|remote| remote.store.absent())
            .unwrap_or_default()
    }

    /// Returns the number of entries in all stores.
    pub(crate) async fn count(&self, counters: &CacheCounters) -> u64 {
        match &self.remote {
            Some(remote) if !remote.store.capabilities().counts => {
                entry_count::now(&*remote.store, counters).await
            }
            _ => self.local_stats().entries,
        }
    }

    /// Returns whether that number is complete.
    pub(crate) fn is_counted(&self) -> bool {
        self.remote
            .as_ref()
            .is_none_or(|remote| remote.store.capabilities().counts)
    }

    /// Queues the removal of an entry.
    pub(crate) fn remove(&self, key: CacheKey) {
        self.memory.remove(&key);
        if let Some(remote) = &self.remote {
            remote.writer.remove(key);
        }
    }

    /// Writes the queued entries within a short time, and ends.
    pub(crate) async fn stop(&self) {
        if let Some(remote) = &self.remote {
            remote.writer.stop().await;
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
