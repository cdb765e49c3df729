//! Stores beside engines: one stream per store; its blocks count for every instance registered for
//! it.
//!
//! A store names only blocks that engines named before, so its updates apply to the targets of
//! those engines: blocks in the store extend the prefix that is on their devices. Source: contract
//! MC10.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use event_sources::{BlockSink, Endpoint, FanOut, SourceHandle};
use kv_blocks::{IndexUpdate, Target, Tier};
use kv_index::{KvIndex, UpdateOutcome};

use crate::registration::Registration;

/// Stores that have a registration.
#[derive(Debug)]
pub(crate) struct Stores {
    index: Arc<KvIndex>,
    by_endpoint: HashMap<(Endpoint, Option<Endpoint>), Weak<FollowedStore>>,
}

/// A followed store. Dropping the last of its memberships ends its stream.
#[derive(Debug)]
struct FollowedStore {
    sink: Arc<StoreSink>,
    source: SourceHandle,
}

/// Credits a store's blocks to a target until it is dropped. Blocks credited before stay with the
/// target.
#[derive(Debug)]
pub(crate) struct StoreMembership {
    store: Arc<FollowedStore>,
    target: Target,
}

impl Stores {
    pub(crate) fn new(index: Arc<KvIndex>) -> Self {
        Self {
            index,
            by_endpoint: HashMap::new(),
        }
    }

    /// Adds the target to the registration's store. `follow` starts the store's source unless it
    /// runs already.
    pub(crate) fn join(
        &mut self,
        registration: &Registration,
        target: Target,
        follow: impl FnOnce(Arc<dyn BlockSink>) -> SourceHandle,
    ) -> StoreMembership {
        self.by_endpoint.retain(|_, store| store.strong_count() > 0);
        let key = (
            registration.endpoint.clone(),
            registration.replay_endpoint.clone(),
        );
        let running = self
            .by_endpoint
            .get(&key)
            .and_then(Weak::upgrade)
            .filter(|store| !store.source.ended());
        let store = running.unwrap_or_else(|| {
            let sink = Arc::new(StoreSink(FanOut::new(Arc::clone(&self.index))));
            let store = Arc::new(FollowedStore {
                source: follow(Arc::clone(&sink) as _),
                sink,
            });
            self.by_endpoint.insert(key, Arc::downgrade(&store));
            store
        });
        store.sink.0.add(target);
        StoreMembership { store, target }
    }
}

impl StoreMembership {
    pub(crate) fn source(&self) -> &SourceHandle {
        &self.store.source
    }
}

impl Drop for StoreMembership {
    fn drop(&mut self) {
        self.store.sink.0.remove(self.target);
    }
}

/// Sink for a store's updates of its own media. It passes on nothing about the engines' devices.
#[derive(Debug)]
struct StoreSink(FanOut);

impl BlockSink for StoreSink {
    fn register(&self, target: Target, model: &Arc<str>) {
        self.0.register(target, model);
    }

    fn apply(&self, target: Target, update: &IndexUpdate) -> UpdateOutcome {
        let tier = match update {
            IndexUpdate::Stored(stored) => stored.tier,
            IndexUpdate::Named(named) => named.tier,
            IndexUpdate::Removed(removed) => removed.tier,
            IndexUpdate::Cleared => Tier::Device,
        };
        if tier == Tier::Device {
            UpdateOutcome {
                ignored: 1,
                ..UpdateOutcome::default()
            }
        } else {
            self.0.apply(target, update)
        }
    }

    fn clear(&self, target: Target) {
        self.0.clear(target);
    }

    fn mark_loss(&self, target: Target) {
        self.0.mark_loss(target);
    }
}
