//! The cache's interface for the request path.

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwap, ArcSwapOption};
use net::Clock;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::{
    CacheEntry, CacheGeneration, CacheKey, CacheLookup, CacheResult, CacheSelection,
    CacheStartError, CacheStats, RedisPool, Relief, StoreFault, UnitVector,
    counters::CacheCounters,
    engine::{CacheEngine, CacheParts, CurrentSettings, entries},
    generation::Generations,
    hmac_envelope::HmacEnvelope,
    similarity::{IndexedReply, SimilarityIndex},
    store::{StoreFill, StoreStats},
    telemetry::{CacheTelemetry, NoRedis},
};

/// The response cache over all stores. It does not decide which replies may be cached for whom: the
/// key contains that.
#[derive(Debug)]
pub struct ResponseCache {
    parts: CacheParts,
    similar: SimilarityIndex,
    /// `None`: the cache is off.
    engine: ArcSwapOption<CacheEngine>,
    /// Locked while settings change; the value is the current relief.
    relief: Mutex<Relief>,
}

impl ResponseCache {
    /// Starts the backend of the settings; if the cache is off nothing runs, and its metric
    /// families stay at 0. Call inside a tokio runtime.
    ///
    /// `redis`: the process's pool, if it has one, whether or not replies are stored there; the
    /// pool's creator registers its metric families, and without a pool they are registered here,
    /// at 0.
    ///
    /// # Errors
    /// If the backend cannot be started.
    pub fn start(
        settings: &config::ResponseCacheSection,
        redis: Option<Arc<RedisPool>>,
        clock: Clock,
        registry: &mut Registry,
    ) -> Result<Arc<Self>, CacheStartError> {
        let off = config::ResponseCacheSection {
            enabled: false,
            ..settings.clone()
        };
        let without_redis = redis.is_none();
        let cache = Arc::new(Self {
            parts: CacheParts {
                current: Arc::new(CurrentSettings::from_pointee(off)),
                seal: Arc::new(ArcSwap::from_pointee(HmacEnvelope::new(None))),
                clock,
                redis,
                counters: Arc::default(),
                generations: Arc::new(Generations::default()),
            },
            similar: SimilarityIndex::default(),
            engine: ArcSwapOption::empty(),
            relief: Mutex::default(),
        });
        cache.apply(settings.clone(), Relief::Nothing)?;
        cache.parts.counters.register(registry);
        registry.register_collector(Box::new(CacheTelemetry(Arc::clone(&cache))));
        if without_redis {
            registry.register_collector(Box::new(NoRedis));
        }
        Ok(cache)
    }

    /// Returns the current settings.
    pub fn settings(&self) -> Arc<config::ResponseCacheSection> {
        self.parts.current.load_full()
    }

    /// Looks a reply up, for at most `lookup_budget`; in memory without any wait.
    pub async fn get(&self, key: &CacheKey) -> CacheLookup {
        self.get_after(key, Duration::ZERO).await
    }

    /// Looks a reply up for a request that has already waited for the cache.
    pub async fn get_after(&self, key: &CacheKey, waited: Duration) -> CacheLookup {
        // The guard is not held across the wait: a change of settings need not wait for lookups.
        let engine = match &*self.engine.load() {
            None => return CacheLookup::Unavailable,
            Some(engine) => match engine.get_in_process(key) {
                Some(lookup) => return lookup,
                None => Arc::clone(engine),
            },
        };
        engine.get(key, waited, &self.parts).await
    }

    /// Queues a reply for storage; a reply that does not fit is dropped and counted. `begun`:
    /// [`Self::generation`] from before the request was sent. `guard` is dropped once the reply can
    /// be found, or never will be.
    pub fn put(
        &self,
        key: CacheKey,
        entry: CacheEntry,
        begun: CacheGeneration,
        guard: impl Send + Sync + 'static,
    ) {
        let Some(engine) = &*self.engine.load() else {
            return;
        };
        let settings = self.parts.current.load();
        let longest = settings
            .max_response_size
            .max(settings.max_stream_buffer_size);
        let is_short = *self.relief.lock() == Relief::StopWrites;
        if is_short || entry.body.len() > longest {
            self.parts.counters.writes_dropped.one();
            return;
        }
        let fill = StoreFill {
            key,
            entry,
            ttl: settings.ttl,
            generation: begun,
        };
        engine.put(fill, Box::new(guard));
    }

    /// Returns the reply of this rest whose prompt is nearest to `query`, if it is near enough,
    /// with its similarity.
    pub fn similar(&self, rest: &CacheKey, query: &UnitVector) -> Option<(CacheEntry, f64)> {
        let settings = self.settings();
        let (near, now) = (settings.similarity()?, self.parts.clock.now());
        self.similar.find(rest, query, near.threshold, now)
    }

    /// Stores a reply for questions with the same meaning. `rest`: everything that the requests
    /// must share.
    pub fn put_similar_reply(
        &self,
        rest: CacheKey,
        direction: UnitVector,
        entry: CacheEntry,
        begun: CacheGeneration,
    ) {
        let settings = self.settings();
        let Some(near) = settings.similarity() else {
            return;
        };
        if begun == self.generation() && *self.relief.lock() != Relief::StopWrites {
            let now = self.parts.clock.now();
            let reply = IndexedReply {
                rest,
                direction,
                entry,
                until: now + near.ttl,
            };
            self.similar.put(reply, near.max_entries.get(), now);
            // A clear in between has already emptied the index.
            if begun != self.generation() {
                self.similar.clear();
            }
        }
    }

    /// Queues the removal of one entry whose body turned out to be unusable.
    pub fn remove(&self, key: &CacheKey) {
        if let Some(engine) = &*self.engine.load() {
            engine.remove(*key);
        }
    }

    /// Returns the current generation.
    pub fn generation(&self) -> CacheGeneration {
        self.parts.generations.now()
    }

    /// Removes the selected entries of this cache and no foreign one; returns their number. An entry
    /// that began before, selected or not, is not stored after it.
    ///
    /// # Errors
    /// If entries may remain: a store was unavailable, or failed midway. The entries in memory are
    /// removed in any case.
    pub async fn clear(&self, selection: CacheSelection) -> Result<u64, StoreFault> {
        self.parts.generations.clear();
        self.similar.remove(selection);
        match self.engine.load_full() {
            Some(engine) => engine.clear(selection).await,
            None => Ok(0),
        }
    }

    /// Counts the outcome of a request.
    pub fn record_result(&self, what: CacheResult) {
        self.parts
            .counters
            .record_result(what, self.parts.clock.now());
    }

    /// Returns the stores that are unavailable now: `redis`, `s3`.
    pub fn absent(&self) -> Vec<&'static str> {
        self.engine
            .load()
            .as_ref()
            .map(|engine| engine.absent())
            .unwrap_or_default()
    }

    /// Returns the current state of the cache.
    pub async fn stats(&self) -> CacheStats {
        let settings = self.settings();
        let (counters, local) = (&self.parts.counters, self.local_stats());
        let counted = match self.engine.load_full() {
            Some(engine) => engine.count(counters).await,
            None => 0,
        };
        CacheStats {
            enabled: settings.enabled,
            backend_type: settings.backend.as_str(),
            entries: counted,
            entries_are_all: self
                .engine
                .load()
                .as_ref()
                .is_none_or(|engine| engine.is_counted()),
            capacity: entries(&settings).map(|count| count as u64),
            size_bytes: local.bytes,
            evictions: local.evictions + counters.evictions.get(),
            hits: counters.requests(CacheResult::Hit),
            misses: counters.requests(CacheResult::Miss),
            skips: counters.requests(CacheResult::Skip),
            hit_rate: self.hit_rate(),
            semantic_entries: self.similar.len() as u64,
            redis: if settings.is_in_redis() {
                self.redis_stats()
            } else {
                None
            },
        }
    }

    /// Applies new settings. The location of replies stays as at the start: backend, `redis`,
    /// `l1.type` and `l2`. Call inside a tokio runtime.
    pub fn reconfigure(&self, settings: &config::ResponseCacheSection) {
        let relief = self.relief.lock();
        let now = self.settings();
        let mut next = config::ResponseCacheSection {
            backend: now.backend,
            redis: now.redis.clone(),
            l2: now.l2.clone(),
            ..settings.clone()
        };
        next.l1.kind = now.l1.kind;
        if let Err(error) = self.apply(next.clone(), *relief) {
            tracing::error!(%error, "the response cache stays off");
            self.parts
                .current
                .store(Arc::new(config::ResponseCacheSection {
                    enabled: false,
                    ..next
                }));
        }
    }

    /// Sets the relief for the process's memory pressure.
    pub fn relieve(&self, relief: Relief) {
        let mut current = self.relief.lock();
        if *current == relief {
            return;
        }
        *current = relief;
        if relief != Relief::Nothing {
            self.similar
                .shrink(self.settings().semantic.max_entries.get());
        }
        if let Some(engine) = self.engine.load_full() {
            engine.reconfigure(&self.settings(), relief);
        }
    }

    /// Writes the queued entries within a short time, and ends; afterwards the cache is off.
    pub async fn stop(&self) {
        if let Some(engine) = self.engine.swap(None) {
            self.parts
                .counters
                .evictions
                .add(engine.local_stats().evictions);
            engine.stop().await;
        }
    }

    /// Applies settings and relief. Callers are serialized.
    fn apply(
        &self,
        next: config::ResponseCacheSection,
        relief: Relief,
    ) -> Result<(), CacheStartError> {
        self.parts
            .seal
            .store(Arc::new(HmacEnvelope::new(mac_key(&next))));
        // Stores read them during construction.
        self.parts.current.store(Arc::new(next.clone()));
        match (self.engine.load_full(), next.enabled) {
            (Some(engine), true) => engine.reconfigure(&next, relief),
            (Some(engine), false) => {
                self.parts
                    .counters
                    .evictions
                    .add(engine.local_stats().evictions);
                self.engine.store(None);
                self.similar.clear();
            }
            (None, true) => {
                let engine = CacheEngine::start(relief, &self.parts)?;
                self.engine.store(Some(Arc::new(engine)));
                tell(&next);
            }
            (None, false) => {}
        }
        Ok(())
    }

    #[cfg(feature = "redis-cache")]
    fn redis_stats(&self) -> Option<crate::RedisStats> {
        use redis_store::FaultKind;

        let pool = self.parts.redis.as_ref()?;
        let (active, idle) = pool.connections();
        Some(crate::RedisStats {
            active,
            idle,
            fallback_active: pool.has_fallback(),
            connection_errors: pool.faults(FaultKind::Connection),
            timeout_errors: pool.faults(FaultKind::Timeout),
            other_errors: pool.faults(FaultKind::Other),
        })
    }

    #[cfg(not(feature = "redis-cache"))]
    #[expect(clippy::unused_self, reason = "as where there can be connections")]
    fn redis_stats(&self) -> Option<crate::RedisStats> {
        None
    }

    pub(crate) fn counters(&self) -> &CacheCounters {
        &self.parts.counters
    }

    pub(crate) fn local_stats(&self) -> StoreStats {
        self.engine
            .load()
            .as_ref()
            .map(|engine| engine.local_stats())
            .unwrap_or_default()
    }

    /// Returns the number of entries at the last count.
    pub(crate) fn entries(&self) -> u64 {
        match &*self.engine.load() {
            Some(engine) if !engine.is_counted() => self.parts.counters.last_count(),
            _ => self.local_stats().entries,
        }
    }

    pub(crate) fn hit_rate(&self) -> f64 {
        self.parts.counters.hit_rate(self.parts.clock.now())
    }
}

/// Returns the MAC key; an empty one counts as absent because it proves nothing.
fn mac_key(settings: &config::ResponseCacheSection) -> Option<&str> {
    settings
        .mac_key
        .as_ref()
        .map(config::Secret::expose)
        .filter(|key| !key.is_empty())
}

/// Logs, once at each start of the backend, whether other parties could have written the cached
/// replies.
fn tell(settings: &config::ResponseCacheSection) {
    if settings.is_open_to_forgery() {
        tracing::warn!(
            backend = settings.backend.as_str(),
            "response_cache.mac_key is not set: whoever can write to the store of replies can make up answers, only damage is \
             found; set it to the same long random text on all routers, such as `openssl rand -base64 32` prints"
        );
    }
}
