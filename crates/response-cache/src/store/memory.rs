//! Entries in this process.
//!
//! **Invariant**: an entry that began before a clear is absent after it, whichever task stores it.

use std::sync::Arc;

use net::Clock;
use parking_lot::Mutex;

use super::{
    Store, StoreCapabilities, StoreFill, StoreFuture, StoreLookup, StoreStats,
    lru::{LruStore, StoreBounds},
};
use crate::{CacheKey, CacheSelection, entry::FoundEntry, generation::Generations};

/// Entries removed under one lock if many must go: other callers get the lock in between.
const SOME: usize = 1_024;

/// The store of `backend: memory`, the first tier in memory, and the fallback of an unavailable
/// store.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    entries: Mutex<LruStore>,
    generations: Arc<Generations>,
    clock: Clock,
}

impl MemoryStore {
    pub(crate) fn new(bounds: StoreBounds, generations: Arc<Generations>, clock: Clock) -> Self {
        Self {
            entries: Mutex::new(LruStore::new(bounds)),
            generations,
            clock,
        }
    }

    pub(crate) fn find(&self, key: &CacheKey) -> Option<FoundEntry> {
        let now = self.clock.now();
        self.entries.lock().get(key, now)
    }

    pub(crate) fn insert(&self, fill: StoreFill) {
        let now = self.clock.now();
        let mut store = self.entries.lock();
        // A clear takes this lock after it has raised the number: either the check or the clear
        // sees the entry.
        if self.generations.is_present(fill.generation) {
            store.put(fill.key, fill.entry, now + fill.ttl, now);
        }
    }

    pub(crate) fn remove(&self, key: &CacheKey) {
        self.entries.lock().remove(key);
    }

    /// Removes the selected entries. The caller has raised the generation.
    pub(crate) fn empty(&self, selection: CacheSelection) -> u64 {
        if selection == CacheSelection::ALL {
            let taken = self.entries.lock().take_all();
            return taken.len() as u64;
        }
        let selected = self.entries.lock().selected(selection);
        let mut removed = 0;
        for keys in selected.chunks(SOME) {
            let mut entries = self.entries.lock();
            removed += keys.iter().filter(|key| entries.remove(key)).count() as u64;
        }
        removed
    }

    pub(crate) fn set_bounds(&self, bounds: StoreBounds) {
        self.entries.lock().set_bounds(bounds);
        while !self.entries.lock().fit(SOME) {}
    }

    /// Removes some expired entries; returns the size of the rest.
    pub(crate) fn local_stats(&self) -> StoreStats {
        let now = self.clock.now();
        let mut store = self.entries.lock();
        store.tidy(now);
        StoreStats {
            entries: store.len() as u64,
            bytes: store.bytes() as u64,
            evictions: store.evictions(),
        }
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { counts: true }
    }

    fn get(&self, lookup: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(async move { Ok(self.find(&lookup.key)) })
    }

    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.insert(fill);
            Ok(())
        })
    }

    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.remove(&key);
            Ok(())
        })
    }

    fn clear(&self, selection: CacheSelection) -> StoreFuture<'_, u64> {
        Box::pin(async move { Ok(self.empty(selection)) })
    }

    fn stats(&self) -> StoreStats {
        self.local_stats()
    }
}
