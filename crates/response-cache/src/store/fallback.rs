//! Memory in the place of a store that is away or too slow.
//!
//! It is asked at once where the store is not, and filled while it is: what lies there is there for as long as the settings of
//! the fallback say, also when the store is back.

use std::{sync::Arc, time::Duration};

use super::{
    Abilities, Ask, Fill, Pending, Store, StoreStats, memory::MemoryStore, patient::Patient,
};
use crate::{CacheKey, entry::Found};

/// A store with memory to go on with.
#[derive(Debug)]
pub(crate) struct Fallback {
    store: Patient,
    memory: Arc<MemoryStore>,
    ttl: Duration,
}

impl Fallback {
    /// `ttl`: of what lies in memory.
    pub(crate) fn new(store: Patient, memory: Arc<MemoryStore>, ttl: Duration) -> Self {
        Self { store, memory, ttl }
    }
}

impl Store for Fallback {
    fn abilities(&self) -> Abilities {
        self.store.abilities()
    }

    fn absent(&self) -> Vec<&'static str> {
        self.store.absent()
    }

    /// What nobody waits for, or is away, is not waited for here either.
    fn near(&self, fill: &Fill) -> Option<Fill> {
        let stands_in = !self.store.is_waited_for() || !self.store.is_there();
        stands_in.then(|| Fill {
            ttl: fill.ttl.min(self.ttl),
            ..fill.clone()
        })
    }

    fn get(&self, ask: Ask) -> Pending<'_, Option<Found>> {
        Box::pin(async move {
            match self.store.get(ask).await {
                Err(fault) if fault.outage => Ok(self.memory.find(&ask.key)),
                answer => answer,
            }
        })
    }

    fn set(&self, fill: Fill) -> Pending<'_, ()> {
        Box::pin(async move {
            let near = Fill {
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

    fn delete(&self, key: CacheKey) -> Pending<'_, ()> {
        self.memory.remove(&key);
        self.store.delete(key)
    }

    fn clear(&self) -> Pending<'_, u64> {
        Box::pin(async move {
            let near = self.memory.empty();
            self.store.clear().await.map(|far| near + far)
        })
    }

    fn stats(&self) -> StoreStats {
        self.memory.held()
    }

    /// Of whichever answers now.
    fn count(&self) -> Pending<'_, u64> {
        if self.store.is_there() {
            self.store.count()
        } else {
            self.memory.count()
        }
    }
}
