//! A store in Redis: patient, and with memory to stand in for it.

use std::{sync::Arc, time::Duration};

use config::ResponseCache;
use redis_store::{RedisValues, StandIn};

use super::{InRedis, sealing};
use crate::{
    StartError,
    engine::Parts,
    store::{
        Fill,
        fallback::Fallback,
        health::Manner,
        memory::MemoryStore,
        patient::{Late, OnChange, Patience, Patient},
        redis::{NAME, RedisStore},
    },
};

/// The pool knows when the server is away. One look at a time tells whether it is quick again.
const MANNER: Manner = Manner {
    behind: 1,
    slow: (Duration::from_millis(100), Duration::from_secs(5)),
    away: None,
};

/// Half of the connections; the other half is the view of prefixes'. Of them one in four writes.
pub(super) fn store(
    _: &'static str,
    settings: &ResponseCache,
    memory: &Arc<MemoryStore>,
    parts: &Parts,
) -> Result<InRedis, StartError> {
    let missing = StartError::NoStore {
        store: "a Redis server",
        key: "response_cache.redis.url",
    };
    let pool = Arc::clone(parts.redis.as_ref().ok_or(missing)?);
    let half = (pool.most_connections() / 2).max(1);
    let writes = (half / 4).max(1);
    let stand_in = settings.redis.fallback.map(|_| pool.stand_in());
    let values = RedisValues::new(pool, settings.redis.key_prefix.clone());
    let store = RedisStore::new(
        values,
        sealing(parts),
        Arc::clone(&parts.in_force),
        parts.clock,
    );
    let mut with = Patience {
        name: NAME,
        lookups: half.saturating_sub(writes).max(1),
        manner: MANNER,
        late: None,
        on_change: stand_in.map(told),
        in_force: Arc::clone(&parts.in_force),
        tally: Arc::clone(&parts.tally),
        clock: parts.clock,
    };
    let Some(fallback) = settings.redis.fallback else {
        return Ok(InRedis {
            store: Arc::new(Patient::new(Arc::new(store), with)),
            writes,
        });
    };
    let near = Arc::clone(memory);
    let late: Late = Arc::new(move |key, found, begun| {
        let ttl = found.left.min(fallback.ttl);
        near.keep(Fill {
            key,
            entry: found.entry.clone(),
            ttl,
            begun,
        });
    });
    with.late = Some(late);
    let store = Fallback::new(
        Patient::new(Arc::new(store), with),
        Arc::clone(memory),
        fallback.ttl,
    );
    Ok(InRedis {
        store: Arc::new(store),
        writes,
    })
}

fn told(stand_in: StandIn) -> OnChange {
    Arc::new(move |is_prompt| stand_in.answers_for_a_slow_server(!is_prompt))
}
