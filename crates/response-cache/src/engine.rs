//! The stores of one backend, made of the settings. Whoever drops it ends what runs in it.

mod build;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use config::{CacheBackend, L1Kind, ResponseCache};
use net::Clock;
use tokio::time::Instant;

pub(crate) use self::build::Behind;
use crate::{
    CacheKey, Entry, Generation, Lookup, RedisPool, Relief, StartError, StoreFault, census,
    generation::Generations,
    seal::Seal,
    store::{Ask, Fill, StoreStats, memory::MemoryStore, shelf::Bounds},
    tally::Tally,
    tasks::Tasks,
    writer::Held,
};

/// The settings in force.
pub(crate) type InForce = ArcSwap<ResponseCache>;

/// What stores are made with, and what outlives them.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) in_force: Arc<InForce>,
    pub(crate) seal: Arc<ArcSwap<Seal>>,
    pub(crate) clock: Clock,
    pub(crate) redis: Option<Arc<RedisPool>>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) generations: Arc<Generations>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    /// The backend itself, the first tier, or what stands in for Redis: whatever lies in this process.
    memory: Arc<MemoryStore>,
    /// `None`: memory is all there is.
    behind: Option<Behind>,
    /// Counts what lies elsewhere.
    _census: Tasks,
}

impl Engine {
    /// `parts.in_force` are the settings to go by already.
    pub(crate) fn start(relief: Relief, parts: &Parts) -> Result<Self, StartError> {
        let settings = parts.in_force.load_full();
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
            census.start(census::keep(
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

    /// The answer, where it takes no wait to know it.
    pub(crate) fn near(&self, key: &CacheKey) -> Option<Lookup> {
        let found = |entry| Lookup::Found(entry);
        self.behind.is_none().then(|| {
            self.memory
                .find(key)
                .map_or(Lookup::NotFound, |it| found(it.entry))
        })
    }

    pub(crate) async fn get(&self, key: &CacheKey, waited: Duration, parts: &Parts) -> Lookup {
        let Some(behind) = &self.behind else {
            return self.near(key).unwrap_or(Lookup::Unavailable);
        };
        let until = Instant::now() + parts.in_force.load().lookup_budget.saturating_sub(waited);
        let ask = Ask {
            key: *key,
            until,
            begun: parts.generations.of_copies(),
        };
        match behind.store.get(ask).await {
            Ok(Some(found)) => Lookup::Found(found.entry),
            Ok(None) => Lookup::NotFound,
            Err(fault) => {
                tracing::debug!(%fault, "nothing could be looked up");
                Lookup::Unavailable
            }
        }
    }

    pub(crate) fn put(
        &self,
        key: CacheKey,
        entry: Entry,
        begun: Generation,
        settings: &ResponseCache,
        held: Held,
    ) {
        let fill = Fill {
            key,
            entry,
            ttl: settings.ttl,
            begun,
        };
        match &self.behind {
            None => self.memory.keep(fill),
            Some(behind) => {
                // Where memory answers too it has the entry at once, and nobody has to wait for the rest.
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

    /// The caller has raised the generation.
    pub(crate) async fn clear(&self) -> Result<u64, StoreFault> {
        match &self.behind {
            None => Ok(self.memory.empty()),
            Some(behind) => {
                // At once, however long the rest takes.
                let near = self.memory.empty();
                behind.writer.clear().await.map(|far| far.max(near))
            }
        }
    }

    pub(crate) fn refit(&self, settings: &ResponseCache, relief: Relief) {
        self.memory.set_bounds(bounds(settings, relief));
    }

    /// What lies in this process.
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

    /// Entries, wherever they lie.
    pub(crate) async fn count(&self, tally: &Tally) -> u64 {
        match &self.behind {
            Some(behind) if !behind.store.abilities().counts => {
                census::now(&*behind.store, tally).await
            }
            _ => self.held().entries,
        }
    }

    /// Whether that is all there is.
    pub(crate) fn is_counted(&self) -> bool {
        self.behind
            .as_ref()
            .is_none_or(|behind| behind.store.abilities().counts)
    }

    /// Soon.
    pub(crate) fn remove(&self, key: CacheKey) {
        self.memory.remove(&key);
        if let Some(behind) = &self.behind {
            behind.writer.remove(key);
        }
    }

    /// Writes what is still to be written, if that is quickly done, and ends.
    pub(crate) async fn stop(&self) {
        if let Some(behind) = &self.behind {
            behind.writer.stop().await;
        }
    }
}

/// Of the memory that a backend has, if it has any: of its own, as a first tier, or in the place of Redis.
fn bounds(settings: &ResponseCache, relief: Relief) -> Bounds {
    let bounds = Bounds {
        entries: entries(settings).unwrap_or(usize::MAX),
        bytes: settings.memory_budget,
    };
    if relief == Relief::Nothing {
        bounds
    } else {
        bounds.half()
    }
}

/// Most entries in memory; `None` = bytes alone bound them.
pub(crate) fn entries(settings: &ResponseCache) -> Option<usize> {
    match (settings.backend, settings.l1.kind) {
        (CacheBackend::Memory, _) => Some(settings.capacity.get()),
        (CacheBackend::Tiered, L1Kind::Memory) => None,
        (CacheBackend::Redis | CacheBackend::Tiered, _) => {
            settings.redis.fallback.map(|it| it.capacity.get())
        }
    }
}
