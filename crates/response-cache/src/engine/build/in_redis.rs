//! Builds a store in Redis: with a time budget, and with memory as its fallback.

use std::{sync::Arc, time::Duration};

use config::ResponseCacheSection;
use redis_store::{FallbackRegistration, RedisValues};

use super::{RedisBackend, sealing};
use crate::{
    CacheStartError,
    engine::CacheParts,
    store::{
        StoreFill,
        budgeted::{BudgetedStore, BudgetedStoreParts, LateEntryFn, OnChange},
        fallback::FallbackStore,
        health::BreakerConfig,
        memory::MemoryStore,
        redis::{NAME, RedisStore},
    },
};

/// The pool detects outages of the server. One lookup at a time detects whether it is quick again.
const BREAKER: BreakerConfig = BreakerConfig {
    background: 1,
    slow: (Duration::from_millis(100), Duration::from_secs(5)),
    outage: None,
};

/// Uses half of the connections; the other half serves the prefix view. One in four of them writes.
pub(super) fn store(
    _: &'static str,
    settings: &ResponseCacheSection,
    memory: &Arc<MemoryStore>,
    parts: &CacheParts,
) -> Result<RedisBackend, CacheStartError> {
    let missing = CacheStartError::NoStore {
        store: "a Redis server",
        key: "response_cache.redis.url",
    };
    let pool = Arc::clone(parts.redis.as_ref().ok_or(missing)?);
    let half = (pool.most_connections() / 2).max(1);
    let writes = (half / 4).max(1);
    let registration = settings.redis.fallback().map(|_| pool.register_fallback());
    let values = RedisValues::new(pool, settings.redis.key_prefix.clone());
    let store = RedisStore::new(
        values,
        sealing(parts),
        Arc::clone(&parts.current),
        parts.clock,
    );
    let mut with = BudgetedStoreParts {
        name: NAME,
        lookups: half.saturating_sub(writes).max(1),
        breaker: BREAKER,
        late: None,
        on_change: registration.map(report_slowness),
        current: Arc::clone(&parts.current),
        counters: Arc::clone(&parts.counters),
        clock: parts.clock,
    };
    let Some(fallback) = settings.redis.fallback() else {
        return Ok(RedisBackend {
            store: Arc::new(BudgetedStore::new(Arc::new(store), with)),
            writes,
        });
    };
    let near = Arc::clone(memory);
    let late: LateEntryFn = Arc::new(move |key, found, generation| {
        let ttl = found.left.min(fallback.ttl);
        near.insert(StoreFill {
            key,
            entry: found.entry.clone(),
            ttl,
            generation,
        });
    });
    with.late = Some(late);
    let store = FallbackStore::new(
        BudgetedStore::new(Arc::new(store), with),
        Arc::clone(memory),
        fallback.ttl,
    );
    Ok(RedisBackend {
        store: Arc::new(store),
        writes,
    })
}

fn report_slowness(registration: FallbackRegistration) -> OnChange {
    Arc::new(move |is_prompt| registration.answers_for_a_slow_server(!is_prompt))
}
