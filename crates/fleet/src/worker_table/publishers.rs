//! The publishers that workers follow, and the sockets of ours that they share.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use event_sources::{SharedSocket, SharedSpec};
use kv_blocks::WorkerId;
use parking_lot::Mutex;

use super::WorkerTable;

/// Publishers and sockets in use.
#[derive(Default)]
pub(super) struct PublisherClaims {
    /// Followed endpoints and their workers: one publisher's events must not be credited to two
    /// workers.
    holders: Mutex<HashMap<String, WorkerId>>,
    /// Sockets of ours that workers share, by endpoint, while any of them is in use.
    shared: Mutex<HashMap<String, Weak<SharedSocket>>>,
}

impl WorkerTable {
    /// Claims a publisher for a worker; the error names the worker that already has it.
    pub(crate) fn claim(&self, endpoint: &str, id: WorkerId) -> Result<(), Arc<str>> {
        let mut holders = self.publishers.holders.lock();
        let holder = *holders.entry(endpoint.to_owned()).or_insert(id);
        drop(holders);
        if holder == id {
            return Ok(());
        }
        Err(self
            .with(holder, |entry| Arc::clone(&entry.view.name))
            .unwrap_or_else(|| "another worker".into()))
    }

    /// Releases a worker's claims.
    pub(crate) fn unclaim(&self, id: WorkerId) {
        let mut holders = self.publishers.holders.lock();
        holders.retain(|_, holder| *holder != id);
    }

    /// Returns the socket bound at this endpoint; binds it if necessary.
    pub(crate) fn shared_socket(&self, endpoint: &str, spec: SharedSpec) -> Arc<SharedSocket> {
        let mut shared = self.publishers.shared.lock();
        shared.retain(|_, socket| socket.strong_count() > 0);
        if let Some(socket) = shared.get(endpoint).and_then(Weak::upgrade) {
            return socket;
        }
        let index = Arc::clone(&self.index);
        let socket = Arc::new(SharedSocket::bind(spec, index, self.clock));
        shared.insert(endpoint.to_owned(), Arc::downgrade(&socket));
        socket
    }
}
