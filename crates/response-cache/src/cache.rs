//! The cache as the request path sees it.

use std::{sync::Arc, time::Duration};

use arc_swap::{ArcSwap, ArcSwapOption};
use config::CacheBackend;
use net::Clock;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::{
    CacheEntry, CacheGeneration, CacheKey, CacheLookup, CacheResult, CacheStartError, CacheStats,
    RedisPool, Relief, StoreFault, UnitVector,
    counters::CacheCounters,
    engine::{CacheEngine, CacheParts, CurrentSettings, entries},
    generation::Generations,
    hmac_envelope::HmacEnvelope,
    similarity::{SimilarityIndex, SimilaritySettings},
    store::StoreStats,
    telemetry::{CacheTelemetry, NoRedis},
};

/// Replies that are kept, wherever they lie. It takes no part in what may be kept and for whom: that is in the key.
#[derive(Debug)]
pub struct ResponseCache {
    parts: CacheParts,
    similar: SimilarityIndex,
    /// `None`: the cache is off.
    engine: ArcSwapOption<CacheEngine>,
    /// Held while settings change; what is there is in force too.
    relief: Mutex<Relief>,
}

impl ResponseCache {
    /// Starts what the settings ask for; where the cache is off nothing runs, and its metric families stand at 0. Call
    /// inside a tokio runtime.
    ///
    /// `redis`: the process's pool, if it has one, whether or not replies lie there; whoever made it registers its
    /// families, and without one they are registered here, at 0.
    ///
    /// # Errors
    /// The backend cannot be had.
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
                tally: Arc::default(),
                generations: Arc::new(Generations::default()),
            },
            similar: SimilarityIndex::default(),
            engine: ArcSwapOption::empty(),
            relief: Mutex::default(),
        });
        cache.apply(settings.clone(), Relief::Nothing)?;
        cache.parts.tally.register(registry);
        registry.register_collector(Box::new(CacheTelemetry(Arc::clone(&cache))));
        if without_redis {
            registry.register_collector(Box::new(NoRedis));
        }
        Ok(cache)
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<config::ResponseCacheSection> {
        self.parts.current.load_full()
    }

    /// Looks for a reply, never longer than `lookup_budget`; in memory without any wait.
    pub async fn get(&self, key: &CacheKey) -> CacheLookup {
        self.get_after(key, Duration::ZERO).await
    }

    /// The same for a request that has waited for the cache already.
    pub async fn get_after(&self, key: &CacheKey, waited: Duration) -> CacheLookup {
        // Not held across the wait: a change of settings need not wait for lookups.
        let engine = match &*self.engine.load() {
            None => return CacheLookup::Unavailable,
            Some(engine) => match engine.get_in_process(key) {
                Some(lookup) => return lookup,
                None => Arc::clone(engine),
            },
        };
        engine.get(key, waited, &self.parts).await
    }

    /// Keeps a reply, soon; what there is no room for is let go and counted. `begun`: [`Self::generation`] of before the
    /// request was sent. `held` is dropped when it can be found, or never will be.
    pub fn put(
        &self,
        key: CacheKey,
        entry: CacheEntry,
        begun: CacheGeneration,
        held: impl Send + Sync + 'static,
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
            self.parts.tally.writes_dropped.one();
            return;
        }
        engine.put(key, entry, begun, &settings, Box::new(held));
    }

    /// The reply to the question of this rest that is nearest to what is asked, if it is near enough, and how near it is.
    pub fn similar(&self, rest: &CacheKey, asked: &UnitVector) -> Option<(CacheEntry, f64)> {
        let near = SimilaritySettings::of(&self.settings())?;
        self.similar.find(rest, asked, near, self.parts.clock.now())
    }

    /// Keeps a reply for questions that mean the same. `rest`: all that they must share with it.
    pub fn put_similar_reply(
        &self,
        rest: CacheKey,
        direction: UnitVector,
        entry: CacheEntry,
        begun: CacheGeneration,
    ) {
        let Some(near) = SimilaritySettings::of(&self.settings()) else {
            return;
        };
        if begun == self.generation() && *self.relief.lock() != Relief::StopWrites {
            self.similar
                .put(rest, direction, entry, near, self.parts.clock.now());
            // A clear that came in between has emptied it before this.
            if begun != self.generation() {
                self.similar.clear();
            }
        }
    }

    /// Removes one entry, soon: its body turned out to be of no use.
    pub fn remove(&self, key: &CacheKey) {
        if let Some(engine) = &*self.engine.load() {
            engine.remove(*key);
        }
    }

    /// The time between two clears that is now.
    pub fn generation(&self) -> CacheGeneration {
        self.parts.generations.now()
    }

    /// Removes every entry of ours, and none of anybody else's; says how many there were. What was begun before is not
    /// kept after it.
    ///
    /// # Errors
    /// Some may still be there: a store was away, or failed on the way. What lies in memory is gone in any case.
    pub async fn clear(&self) -> Result<u64, StoreFault> {
        self.parts.generations.clear();
        self.similar.clear();
        match self.engine.load_full() {
            Some(engine) => engine.clear().await,
            None => Ok(0),
        }
    }

    /// Counts what became of a request.
    pub fn record_result(&self, what: CacheResult) {
        self.parts.tally.record_result(what, self.parts.clock.now());
    }

    /// The stores that are not there now: `redis`, `s3`.
    pub fn absent(&self) -> Vec<&'static str> {
        self.engine
            .load()
            .as_ref()
            .map(|engine| engine.absent())
            .unwrap_or_default()
    }

    /// The cache as it stands.
    pub async fn stats(&self) -> CacheStats {
        let settings = self.settings();
        let (tally, held) = (&self.parts.tally, self.held());
        let counted = match self.engine.load_full() {
            Some(engine) => engine.count(tally).await,
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
            size_bytes: held.bytes,
            evictions: held.evictions + tally.evictions.get(),
            hits: tally.requests(CacheResult::Hit),
            misses: tally.requests(CacheResult::Miss),
            skips: tally.requests(CacheResult::Skip),
            hit_rate: self.hit_rate(),
            semantic_entries: self.similar.len() as u64,
            redis: if settings.is_in_redis() {
                self.redis_stats()
            } else {
                None
            },
        }
    }

    /// Goes by other settings from now on. Where replies lie stays as it was at the start: backend, `redis`, `l1.type` and
    /// `l2`. Call inside a tokio runtime.
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

    /// The process is short of memory, or no longer.
    pub fn relieve(&self, relief: Relief) {
        let mut held = self.relief.lock();
        if *held == relief {
            return;
        }
        *held = relief;
        if relief != Relief::Nothing {
            self.similar
                .shrink(self.settings().semantic.max_entries.get());
        }
        if let Some(engine) = self.engine.load_full() {
            engine.reconfigure(&self.settings(), relief);
        }
    }

    /// Writes what is still to be written, if that is quickly done, and ends; afterwards the cache is off.
    pub async fn stop(&self) {
        if let Some(engine) = self.engine.swap(None) {
            self.parts.tally.evictions.add(engine.held().evictions);
            engine.stop().await;
        }
    }

    /// Called by one at a time.
    fn apply(
        &self,
        next: config::ResponseCacheSection,
        relief: Relief,
    ) -> Result<(), CacheStartError> {
        self.parts
            .seal
            .store(Arc::new(HmacEnvelope::new(mac_key(&next))));
        // Stores read them while they are made.
        self.parts.current.store(Arc::new(next.clone()));
        match (self.engine.load_full(), next.enabled) {
            (Some(engine), true) => engine.reconfigure(&next, relief),
            (Some(engine), false) => {
                self.parts.tally.evictions.add(engine.held().evictions);
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

    pub(crate) fn tally(&self) -> &CacheCounters {
        &self.parts.tally
    }

    pub(crate) fn held(&self) -> StoreStats {
        self.engine
            .load()
            .as_ref()
            .map(|engine| engine.held())
            .unwrap_or_default()
    }

    /// Entries, as counted last.
    pub(crate) fn entries(&self) -> u64 {
        match &*self.engine.load() {
            Some(engine) if !engine.is_counted() => self.parts.tally.last_count(),
            _ => self.held().entries,
        }
    }

    pub(crate) fn hit_rate(&self) -> f64 {
        self.parts.tally.hit_rate(self.parts.clock.now())
    }
}

/// An empty one proves nothing.
fn mac_key(settings: &config::ResponseCacheSection) -> Option<&str> {
    settings
        .mac_key
        .as_ref()
        .map(config::Secret::expose)
        .filter(|key| !key.is_empty())
}

/// Once at each start of it: who else could have written what we are going to answer.
fn tell(settings: &config::ResponseCacheSection) {
    if settings.backend != CacheBackend::Memory && mac_key(settings).is_none() {
        tracing::warn!(
            backend = settings.backend.as_str(),
            "response_cache.mac_key is not set: whoever can write to the store of replies can make up answers, only damage is \
             found; set it to the same long random text on all routers"
        );
    }
}
