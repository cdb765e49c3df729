//! Stores beside engines: one stream each, whose blocks count for every instance that it is registered for.
//!
//! A store says only which of the blocks that engines have named are with it too, so it speaks for the very targets of those
//! engines: what is with it goes on behind what is on their devices. Source: contract MC10.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use event_sources::{BlockSink, Endpoint, FanOut, SourceHandle};
use kv_blocks::{IndexUpdate, Target, Tier};
use kv_index::{KvIndex, UpdateOutcome};

use crate::registration::Registration;

/// The stores that somebody is registered for.
#[derive(Debug)]
pub(crate) struct Stores {
    index: Arc<KvIndex>,
    by_endpoint: HashMap<(Endpoint, Option<Endpoint>), Weak<FollowedStore>>,
}

/// A followed store. Nobody follows it any more when the last of its memberships is dropped.
#[derive(Debug)]
struct FollowedStore {
    sink: Arc<StoreSink>,
    source: SourceHandle,
}

/// That a store's blocks count for a target, until it is dropped. What counted stays with the target.
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

    /// From now on the registration's store is the target's too. `follow` begins to follow it, if nobody does yet.
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

/// Takes what a store says of its own media. Of the engines' devices it has nothing to say.
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
