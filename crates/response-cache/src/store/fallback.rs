//! Memory in the place of a store that is away or too slow.
//!
//! It is asked at once where the store is not, and filled while it is: what lies there is there for as long as the settings of
//! the fallback say, also when the store is back.

use std::{sync::Arc, time::Duration};

use super::{
    Store, StoreCapabilities, StoreFill, StoreFuture, StoreLookup, StoreStats,
    budgeted::BudgetedStore, memory::MemoryStore,
};
use crate::{CacheKey, entry::FoundEntry};

/// A store with memory to go on with.
#[derive(Debug)]
pub(crate) struct FallbackStore {
    store: BudgetedStore,
    memory: Arc<MemoryStore>,
    ttl: Duration,
}

impl FallbackStore {
    /// `ttl`: of what lies in memory.
    pub(crate) fn new(store: BudgetedStore, memory: Arc<MemoryStore>, ttl: Duration) -> Self {
        Self { store, memory, ttl }
    }
}

impl Store for FallbackStore {
    fn abilities(&self) -> StoreCapabilities {
        self.store.abilities()
    }

    fn absent(&self) -> Vec<&'static str> {
        self.store.absent()
    }

    /// What nobody waits for, or is away, is not waited for here either.
    fn near(&self, fill: &StoreFill) -> Option<StoreFill> {
        let stands_in = !self.store.is_waited_for() || !self.store.is_there();
        stands_in.then(|| StoreFill {
            ttl: fill.ttl.min(self.ttl),
            ..fill.clone()
        })
    }

    fn get(&self, ask: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(async move {
            match self.store.get(ask).await {
                Err(fault) if fault.outage => Ok(self.memory.find(&ask.key)),
                answer => answer,
            }
        })
    }

    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let near = StoreFill {
                ttl: fill.ttl.min(self.ttl),
                ..fill.clone()
            };
            match self.store.set(fill).await {
                Err(fault) if fault.outage => self.memory.keep(near),
                // It is there, but nobody will wait for it.
                Ok(()) if !self.store.is_waited_for() => self.memory.keep(near),
                other => return other,
            }
            Ok(())
        })
    }

    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()> {
        self.memory.remove(&key);
        self.store.delete(key)
    }

    fn clear(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let near = self.memory.empty();
            self.store.clear().await.map(|far| near + far)
        })
    }

    fn stats(&self) -> StoreStats {
        self.memory.held()
    }

    /// Of whichever answers now.
    fn count(&self) -> StoreFuture<'_, u64> {
        if self.store.is_there() {
            self.store.count()
        } else {
            self.memory.count()
        }
    }
}
