//! Builds the stores of a backend.

#[cfg_attr(not(feature = "redis-cache"), path = "build/no_redis.rs")]
mod in_redis;
#[cfg_attr(not(feature = "s3-cache"), path = "build/no_s3.rs")]
mod in_s3;

use std::sync::Arc;

use config::{L1Kind, ResponseCacheSection};

use super::CacheParts;
use crate::{
    CacheStartError,
    store::{
        Store,
        envelope::CurrentEnvelope,
        memory::MemoryStore,
        tiered::{PromoteFn, Promotion, TieredStore},
    },
    writer::{FillSender, StoreWriter, WriterQueue, WriterTarget},
};

/// Concurrent writes of entries to two tiers.
const TIERED_WRITES: usize = 8;

/// A store that is not in this process alone, and its writer.
#[derive(Debug)]
pub(crate) struct RemoteStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) writer: StoreWriter,
}

/// A store in Redis with its time budget and fallback.
struct RedisBackend {
    store: Arc<dyn Store>,
    /// Concurrent writes of entries.
    writes: usize,
}

pub(super) fn redis(
    settings: &ResponseCacheSection,
    memory: &Arc<MemoryStore>,
    parts: &CacheParts,
) -> Result<RemoteStore, CacheStartError> {
    let RedisBackend { store, writes } =
        in_redis::store("response_cache.backend", settings, memory, parts)?;
    let writer = WriterQueue::new(Arc::clone(&parts.counters)).start(WriterTarget {
        store: Arc::clone(&store),
        l1: None,
        at_once: writes,
        generations: Arc::clone(&parts.generations),
    });
    Ok(RemoteStore { store, writer })
}

pub(super) fn tiered(
    settings: &ResponseCacheSection,
    memory: &Arc<MemoryStore>,
    parts: &CacheParts,
) -> Result<RemoteStore, CacheStartError> {
    let queue = WriterQueue::new(Arc::clone(&parts.counters));
    let (l1, put): (Arc<dyn Store>, PromoteFn) = match settings.l1.kind {
        L1Kind::Memory => {
            let near = Arc::clone(memory);
            (
                Arc::clone(memory) as _,
                Arc::new(move |fill| near.insert(fill)),
            )
        }
        L1Kind::Redis => {
            let RedisBackend { store, .. } =
                in_redis::store("response_cache.l1.type", settings, memory, parts)?;
            (store, through(&queue.lane))
        }
    };
    let promotion = Promotion {
        put,
        current: Arc::clone(&parts.current),
        counters: Arc::clone(&parts.counters),
    };
    let l2 = in_s3::store(promotion.clone(), parts)?;
    let store = Arc::new(TieredStore {
        l1: Arc::clone(&l1),
        l2,
        promotion,
    });
    let writer = queue.start(WriterTarget {
        store: Arc::clone(&store) as _,
        l1: Some(l1),
        at_once: TIERED_WRITES,
        generations: Arc::clone(&parts.generations),
    });
    Ok(RemoteStore { store, writer })
}

fn through(lane: &FillSender) -> PromoteFn {
    let lane = lane.clone();
    Arc::new(move |fill| lane.promote(fill))
}

fn sealing(parts: &CacheParts) -> CurrentEnvelope {
    CurrentEnvelope {
        seal: Arc::clone(&parts.seal),
        counters: Arc::clone(&parts.counters),
    }
}
