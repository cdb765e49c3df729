//! Entries in this process.
//!
//! **Invariant**: what was begun before a clear is not there after it, whoever puts it.

use std::sync::Arc;

use net::Clock;
use parking_lot::Mutex;

use super::{
    Abilities, Ask, Fill, Pending, Store, StoreStats,
    shelf::{Bounds, Shelf},
};
use crate::{CacheKey, entry::Found, generation::Generations};

/// Entries evicted at a time where many have to go: others get at the shelf in between.
const SOME: usize = 1_024;

/// The store of `backend: memory`, the first tier in memory, and what stands in for a store that is away.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    shelf: Mutex<Shelf>,
    generations: Arc<Generations>,
    clock: Clock,
}

impl MemoryStore {
    pub(crate) fn new(bounds: Bounds, generations: Arc<Generations>, clock: Clock) -> Self {
        Self {
            shelf: Mutex::new(Shelf::new(bounds)),
            generations,
            clock,
        }
    }

    pub(crate) fn find(&self, key: &CacheKey) -> Option<Found> {
        let now = self.clock.now();
        self.shelf.lock().get(key, now)
    }

    pub(crate) fn keep(&self, fill: Fill) {
        let now = self.clock.now();
        let mut shelf = self.shelf.lock();
        // Under the lock that a clear takes after it has raised the number: one of the two is seen.
        if self.generations.is_present(fill.begun) {
            shelf.put(fill.key, fill.entry, now + fill.ttl, now);
        }
    }

    pub(crate) fn remove(&self, key: &CacheKey) {
        self.shelf.lock().remove(key);
    }

    /// The caller has raised the generation.
    pub(crate) fn empty(&self) -> u64 {
        let taken = self.shelf.lock().taken();
        taken.len() as u64
    }

    pub(crate) fn set_bounds(&self, bounds: Bounds) {
        self.shelf.lock().set_bounds(bounds);
        while !self.shelf.lock().fit(SOME) {}
    }

    /// Takes away some of what is past its time, and says what is left.
    pub(crate) fn held(&self) -> StoreStats {
        let now = self.clock.now();
        let mut shelf = self.shelf.lock();
        shelf.tidy(now);
        StoreStats {
            entries: shelf.len() as u64,
            bytes: shelf.bytes() as u64,
            evictions: shelf.evictions(),
        }
    }
}

impl Store for MemoryStore {
    fn abilities(&self) -> Abilities {
        Abilities { counts: true }
    }

    fn get(&self, ask: Ask) -> Pending<'_, Option<Found>> {
        Box::pin(async move { Ok(self.find(&ask.key)) })
    }

    fn set(&self, fill: Fill) -> Pending<'_, ()> {
        Box::pin(async move {
            self.keep(fill);
            Ok(())
        })
    }

    fn delete(&self, key: CacheKey) -> Pending<'_, ()> {
        Box::pin(async move {
            self.remove(&key);
            Ok(())
        })
    }

    fn clear(&self) -> Pending<'_, u64> {
        Box::pin(async move { Ok(self.empty()) })
    }

    fn stats(&self) -> StoreStats {
        self.held()
    }
}
