//! Memory as the substitute of a store that is unavailable or slow.
//!
//! The memory answers while the store does not, and is filled during that time: its entries live
//! for the TTL of the fallback settings, also after the store's return.

use std::{sync::Arc, time::Duration};

use super::{
    Store, StoreCapabilities, StoreFill, StoreFuture, StoreLookup, StoreStats,
    budgeted::BudgetedStore, memory::MemoryStore,
};
use crate::{CacheKey, CacheSelection, entry::FoundEntry};

/// A store with memory as its fallback.
#[derive(Debug)]
pub(crate) struct FallbackStore {
    store: BudgetedStore,
    memory: Arc<MemoryStore>,
    ttl: Duration,
}

impl FallbackStore {
    /// `ttl`: lifetime of the entries in memory.
    pub(crate) fn new(store: BudgetedStore, memory: Arc<MemoryStore>, ttl: Duration) -> Self {
        Self { store, memory, ttl }
    }
}

impl Store for FallbackStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    fn absent(&self) -> Vec<&'static str> {
        self.store.absent()
    }

    /// Returns the copy for memory if requests do not wait for the store, or it is unavailable.
    fn near(&self, fill: &StoreFill) -> Option<StoreFill> {
        let stands_in = !self.store.is_waited_for() || !self.store.is_available();
        stands_in.then(|| StoreFill {
            ttl: fill.ttl.min(self.ttl),
            ..fill.clone()
        })
    }

    fn get(&self, lookup: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(async move {
            match self.store.get(lookup).await {
                Err(fault) if fault.outage => Ok(self.memory.find(&lookup.key)),
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
                Err(fault) if fault.outage => self.memory.insert(near),
                // The store is available, but requests do not wait for it.
                Ok(()) if !self.store.is_waited_for() => self.memory.insert(near),
                other => return other,
            }
            Ok(())
        })
    }

    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()> {
        self.memory.remove(&key);
        self.store.delete(key)
    }

    fn clear(&self, selection: CacheSelection) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let near = self.memory.empty(selection);
            self.store.clear(selection).await.map(|far| near + far)
        })
    }

    fn stats(&self) -> StoreStats {
        self.memory.local_stats()
    }

    /// Counts the entries of the part that answers now.
    fn count(&self) -> StoreFuture<'_, u64> {
        if self.store.is_available() {
            self.store.count()
        } else {
            self.memory.count()
        }
    }
}
