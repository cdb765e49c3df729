//! Connections to workers, and the idle ones of each worker.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kv_blocks::{Moment, WorkerId};
use net::Clock;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::{connection::UpstreamConnection, local_faults::LocalFaults};

/// Longest idle time of a connection: below the 5 s after which Python engines close theirs, so
/// that a request rarely meets a connection that is closing.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Most idle connections per worker. Further ones are closed.
const PER_WORKER: usize = 512;

/// The idle connections to one worker, each with the start of its idle time, in order of last use.
type IdleConnections = Vec<(Moment, UpstreamConnection)>;

/// The idle connections to all workers. Clones share them.
#[derive(Clone, Debug)]
pub struct ConnectionPools {
    idle: Arc<Mutex<HashMap<WorkerId, IdleConnections>>>,
    pub(super) clock: Clock,
    pub(super) local_faults: Arc<LocalFaults>,
}

impl ConnectionPools {
    /// Returns empty pools, and registers the counter of local faults.
    pub fn new(clock: Clock, registry: &mut Registry) -> Self {
        let local_faults = LocalFaults::default();
        local_faults.register(registry);
        Self {
            idle: Arc::default(),
            clock,
            local_faults: Arc::new(local_faults),
        }
    }

    /// Takes the most recently used connection that is still usable.
    pub(super) fn take(&self, worker: WorkerId, now: Moment) -> Option<UpstreamConnection> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(&worker)?;
        while let Some((since, mut connection)) = connections.pop() {
            if now.since(since) >= IDLE_LIMIT {
                // The connections below were used even longer ago.
                connections.clear();
                return None;
            }
            if connection.is_open() {
                return Some(connection);
            }
        }
        None
    }

    /// Closes the idle connections to a failed or removed worker.
    pub fn close_worker(&self, worker: WorkerId) {
        self.idle.lock().remove(&worker);
    }

    /// Closes connections that have been idle for too long, also of removed workers.
    pub fn close_idle(&self, now: Moment) {
        self.idle.lock().retain(|_, connections| {
            connections.retain(|(since, _)| now.since(*since) < IDLE_LIMIT);
            !connections.is_empty()
        });
    }

    /// Takes back a connection whose reply was read to its end.
    pub(super) fn release(&self, worker: WorkerId, connection: UpstreamConnection) {
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        let connections = idle.entry(worker).or_default();
        if connections.len() < PER_WORKER {
            connections.push((now, connection));
        }
    }
}
