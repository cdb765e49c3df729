//! Which stores a backend is made of.

#[cfg_attr(not(feature = "redis-cache"), path = "build/no_redis.rs")]
mod in_redis;
#[cfg_attr(not(feature = "s3-cache"), path = "build/no_s3.rs")]
mod in_s3;

use std::sync::Arc;

use config::{L1Kind, ResponseCache};

use super::Parts;
use crate::{
    StartError,
    store::{
        Store,
        memory::MemoryStore,
        sealing::Sealing,
        tiered::{Promote, Promotion, Tiered},
    },
    writer::{Lane, Queue, Writer, Written},
};

/// Entries written to two tiers at a time.
const TIERED_WRITES: usize = 8;

/// A store that is not in this process alone, and the way to write to it.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) writer: Writer,
}

/// A store in Redis, as requests may use it.
struct InRedis {
    store: Arc<dyn Store>,
    /// Entries written at a time.
    writes: usize,
}

pub(super) fn redis(
    settings: &ResponseCache,
    memory: &Arc<MemoryStore>,
    parts: &Parts,
) -> Result<Behind, StartError> {
    let InRedis { store, writes } =
        in_redis::store("response_cache.backend", settings, memory, parts)?;
    let writer = Queue::new(Arc::clone(&parts.tally)).start(Written {
        store: Arc::clone(&store),
        l1: None,
        at_once: writes,
        generations: Arc::clone(&parts.generations),
    });
    Ok(Behind { store, writer })
}

pub(super) fn tiered(
    settings: &ResponseCache,
    memory: &Arc<MemoryStore>,
    parts: &Parts,
) -> Result<Behind, StartError> {
    let queue = Queue::new(Arc::clone(&parts.tally));
    let (l1, put): (Arc<dyn Store>, Promote) = match settings.l1.kind {
        L1Kind::Memory => {
            let near = Arc::clone(memory);
            (
                Arc::clone(memory) as _,
                Arc::new(move |fill| near.keep(fill)),
            )
        }
        L1Kind::Redis => {
            let InRedis { store, .. } =
                in_redis::store("response_cache.l1.type", settings, memory, parts)?;
            (store, through(&queue.lane))
        }
    };
    let promotion = Promotion {
        put,
        in_force: Arc::clone(&parts.in_force),
        tally: Arc::clone(&parts.tally),
    };
    let l2 = in_s3::store(promotion.clone(), parts)?;
    let store = Arc::new(Tiered {
        l1: Arc::clone(&l1),
        l2,
        promotion,
    });
    let writer = queue.start(Written {
        store: Arc::clone(&store) as _,
        l1: Some(l1),
        at_once: TIERED_WRITES,
        generations: Arc::clone(&parts.generations),
    });
    Ok(Behind { store, writer })
}

fn through(lane: &Lane) -> Promote {
    let lane = lane.clone();
    Arc::new(move |fill| lane.promote(fill))
}

fn sealing(parts: &Parts) -> Sealing {
    Sealing {
        seal: Arc::clone(&parts.seal),
        tally: Arc::clone(&parts.tally),
    }
}
