//! What the fleet knows of one worker.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};

/// A worker that was registered at run time.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Its entry of `workers`, with its name.
    pub entry: Arc<Map<String, Value>>,
    /// Its lease time, if it must register again within that.
    pub lease: Option<Duration>,
}

/// What the fleet knows of one worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedWorker {
    /// Its registration; `None`: every router knows the worker from elsewhere, or not at all.
    pub registration: Option<Registration>,
    /// Whether operators drained it.
    pub drained: bool,
}

impl SharedWorker {
    /// Returns whether there is nothing to know.
    pub(crate) fn is_empty(&self) -> bool {
        self.registration.is_none() && !self.drained
    }

    /// Returns the lease time.
    pub(crate) fn lease(&self) -> Option<Duration> {
        self.registration.as_ref()?.lease
    }
}

/// Returns whether a router would have the same worker: the length of a lease is of no interest.
pub(crate) fn is_same(one: Option<&Registration>, other: Option<&Registration>) -> bool {
    let relevant = |registration: &Registration| {
        (
            Arc::clone(&registration.entry),
            registration.lease.is_some(),
        )
    };
    one.map(relevant) == other.map(relevant)
}
