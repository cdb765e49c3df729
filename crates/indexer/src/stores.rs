//! Stores beside engines: one stream per store; its blocks count for every instance registered for
//! it.
//!
//! A store's master names only blocks that engines named before, so its updates apply to the targets
//! of those engines: blocks in the store extend the prefix that is on their devices. A store that
//! sends envelopes describes its blocks itself. Source: contract MC10.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use event_sources::{BlockSink, Endpoint, FanOut, SourceHandle};
use kv_blocks::{HashScheme, Target};
use kv_index::KvIndex;

use crate::registration::Registration;

/// Stores that have a registration.
#[derive(Debug)]
pub(crate) struct Stores {
    index: Arc<KvIndex>,
    scheme: HashScheme,
    by_endpoint: HashMap<(String, Option<Endpoint>), Weak<FollowedStore>>,
}

/// A followed store. Dropping the last of its memberships ends its stream.
#[derive(Debug)]
struct FollowedStore {
    sink: Arc<FanOut>,
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
    pub(crate) fn new(index: Arc<KvIndex>, scheme: HashScheme) -> Self {
        Self {
            index,
            scheme,
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
            registration.endpoint.to_string(),
            registration.replay_endpoint.clone(),
        );
        let running = self
            .by_endpoint
            .get(&key)
            .and_then(Weak::upgrade)
            .filter(|store| !store.source.ended());
        let store = running.unwrap_or_else(|| {
            let sink = Arc::new(FanOut::new(Arc::clone(&self.index)));
            let store = Arc::new(FollowedStore {
                source: follow(Arc::clone(&sink) as _),
                sink,
            });
            self.by_endpoint.insert(key, Arc::downgrade(&store));
            store
        });
        store
            .sink
            .add_with_envelopes(target, registration.scope(target, self.scheme));
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
        self.store.sink.remove(self.target);
    }
}
