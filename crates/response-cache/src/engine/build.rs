//! Which stores a backend is made of, and how they are wrapped.

use std::{sync::Arc, time::Duration};

use config::{L1Kind, ResponseCache};

use super::Parts;
use crate::{
    StartError,
    store::{
        Fill, Store,
        fallback::Fallback,
        health::Manner,
        memory::MemoryStore,
        patient::{Late, Patience, Patient},
        sealing::Sealing,
        tiered::{Promote, Promotion, Tiered},
    },
    writer::{Lane, Queue, Writer, Written},
};

/// Looks at a time in an object store, while it answers.
#[cfg(feature = "s3-cache")]
const S3_LOOKUPS: usize = 16;
/// Entries written to it at a time.
const S3_WRITES: usize = 8;
/// Redis knows by its pool when it is away. One look at a time tells whether it is quick again.
#[cfg(feature = "redis-cache")]
const REDIS_MANNER: Manner =
    Manner { behind: 1, slow: (Duration::from_millis(100), Duration::from_secs(5)), away: None };
/// An object store is seldom quick: while it answers too slowly to be waited for, what it says is copied for those who come
/// later.
#[cfg(feature = "s3-cache")]
const S3_MANNER: Manner = Manner {
    behind: 8,
    slow: (Duration::ZERO, Duration::ZERO),
    away: Some((Duration::from_millis(250), Duration::from_secs(30))),
};

/// A store that is not in this process alone, and the way to write to it.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) writer: Writer,
}

pub(super) fn redis(settings: &ResponseCache, memory: &Arc<MemoryStore>, parts: &Parts) -> Result<Behind, StartError> {
    let share = redis_share(parts, "response_cache.backend", "redis")?;
    let store = in_redis(settings, memory, &share, parts);
    let writer = Queue::new(Arc::clone(&parts.tally)).start(Written {
        store: Arc::clone(&store),
        l1: None,
        at_once: share.writes,
        generations: Arc::clone(&parts.generations),
    });
    Ok(Behind { store, writer })
}

pub(super) fn tiered(settings: &ResponseCache, memory: &Arc<MemoryStore>, parts: &Parts) -> Result<Behind, StartError> {
    let queue = Queue::new(Arc::clone(&parts.tally));
    let (l1, put): (Arc<dyn Store>, Promote) = match settings.l1.kind {
        L1Kind::Memory => {
            let near = Arc::clone(memory);
            (Arc::clone(memory) as _, Arc::new(move |fill| near.keep(fill)))
        }
        L1Kind::Redis => {
            let share = redis_share(parts, "response_cache.l1.type", "redis")?;
            (in_redis(settings, memory, &share, parts), through(&queue.lane))
        }
    };
    let promotion = Promotion { put, in_force: Arc::clone(&parts.in_force), tally: Arc::clone(&parts.tally) };
    let l2 = in_s3(promotion.clone(), parts)?;
    let store = Arc::new(Tiered { l1: Arc::clone(&l1), l2, promotion });
    let writer = queue.start(Written {
        store: Arc::clone(&store) as _,
        l1: Some(l1),
        at_once: S3_WRITES,
        generations: Arc::clone(&parts.generations),
    });
    Ok(Behind { store, writer })
}

fn through(lane: &Lane) -> Promote {
    let lane = lane.clone();
    Arc::new(move |fill| lane.promote(fill))
}

fn sealing(parts: &Parts) -> Sealing {
    Sealing { seal: Arc::clone(&parts.seal), tally: Arc::clone(&parts.tally) }
}

/// The response cache's part of the connections to Redis.
struct Share {
    #[cfg(feature = "redis-cache")]
    pool: Arc<crate::RedisPool>,
    lookups: usize,
    writes: usize,
}

/// Half of the connections; the other half is the view of prefixes'.
#[cfg(feature = "redis-cache")]
fn redis_share(parts: &Parts, _: &'static str, _: &'static str) -> Result<Share, StartError> {
    let missing = StartError::NoStore { store: "a Redis server", key: "response_cache.redis.url" };
    let pool = Arc::clone(parts.redis.as_ref().ok_or(missing)?);
    let half = (pool.most_connections() / 2).max(1);
    let writes = (half / 4).max(1);
    Ok(Share { pool, lookups: half.saturating_sub(writes).max(1), writes })
}

#[cfg(not(feature = "redis-cache"))]
fn redis_share(_: &Parts, key: &'static str, value: &'static str) -> Result<Share, StartError> {
    Err(StartError::NotBuilt { store: "Redis", key, value, feature: "redis-cache" })
}

#[cfg(feature = "redis-cache")]
fn in_redis(settings: &ResponseCache, memory: &Arc<MemoryStore>, share: &Share, parts: &Parts) -> Arc<dyn Store> {
    use crate::store::redis::{NAME, RedisStore};

    let values = redis_store::RedisValues::new(Arc::clone(&share.pool), settings.redis.key_prefix.clone());
    let store = RedisStore::new(values, sealing(parts), Arc::clone(&parts.in_force), parts.clock);
    let stand_in = settings.redis.fallback.map(|_| share.pool.stand_in());
    let mut with = Patience {
        name: NAME,
        lookups: share.lookups,
        manner: REDIS_MANNER,
        late: None,
        on_change: stand_in.map(|it| Arc::new(move |is_prompt: bool| it.answers_for_a_slow_server(!is_prompt)) as _),
        in_force: Arc::clone(&parts.in_force),
        tally: Arc::clone(&parts.tally),
        clock: parts.clock,
    };
    let Some(fallback) = settings.redis.fallback else { return Arc::new(Patient::new(Arc::new(store), with)) };
    let near = Arc::clone(memory);
    let late: Late = Arc::new(move |key, found, begun| {
        let ttl = found.left.min(fallback.ttl);
        near.keep(Fill { key, entry: found.entry.clone(), ttl, begun });
    });
    with.late = Some(late);
    Arc::new(Fallback::new(Patient::new(Arc::new(store), with), Arc::clone(memory), fallback.ttl))
}

#[cfg(not(feature = "redis-cache"))]
fn in_redis(_: &ResponseCache, memory: &Arc<MemoryStore>, _: &Share, _: &Parts) -> Arc<dyn Store> {
    // Never called: there is no share.
    Arc::clone(memory) as _
}

#[cfg(feature = "s3-cache")]
fn in_s3(promotion: Promotion, parts: &Parts) -> Result<Arc<dyn Store>, StartError> {
    use crate::store::s3::{NAME, S3Store};

    let store = S3Store::new(sealing(parts), Arc::clone(&parts.in_force), parts.clock)?;
    let late: Late = Arc::new(move |key, found, begun| promotion.consider(key, found, begun));
    let with = Patience {
        name: NAME,
        lookups: S3_LOOKUPS,
        manner: S3_MANNER,
        late: Some(late),
        on_change: None,
        in_force: Arc::clone(&parts.in_force),
        tally: Arc::clone(&parts.tally),
        clock: parts.clock,
    };
    Ok(Arc::new(Patient::new(Arc::new(store), with)))
}

#[cfg(not(feature = "s3-cache"))]
fn in_s3(_: Promotion, _: &Parts) -> Result<Arc<dyn Store>, StartError> {
    let key = "response_cache.backend";
    Err(StartError::NotBuilt { store: "an object store", key, value: "tiered", feature: "s3-cache" })
}
