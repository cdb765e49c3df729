//! Idle connections, per worker.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kv_blocks::{Moment, WorkerId};
use parking_lot::Mutex;

use super::{UpstreamConnection, local_faults::LocalFaults};

/// How long a connection may be idle before it is closed: below the 5 s after which Python engines close theirs, so that
/// a request rarely meets a connection that is going away.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Idle connections kept per worker. One more is closed in place of being kept.
const PER_WORKER: usize = 512;

/// The idle connections to one worker, and since when each is idle; the last one was used last.
type IdleConnections = Vec<(Moment, UpstreamConnection)>;

/// The idle connections to all workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionPools {
    idle: Arc<Mutex<HashMap<WorkerId, IdleConnections>>>,
    pub(crate) local_faults: Arc<LocalFaults>,
}

impl ConnectionPools {
    /// The most recently used connection that can still be used.
    pub(crate) fn take(&self, worker: WorkerId, now: Moment) -> Option<UpstreamConnection> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(&worker)?;
        while let Some((since, connection)) = kept.pop() {
            if now.since(since) >= IDLE_LIMIT {
                // Those below were used even longer ago.
                kept.clear();
                return None;
            }
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose reply was read to its end.
    pub(crate) fn release(
        &self,
        worker: WorkerId,
        mut connection: UpstreamConnection,
        clock: net::Clock,
    ) {
        if connection.is_ready() {
            self.keep(worker, connection, clock.now());
            return;
        }
        // The driver needs one more turn to see the end of the reply; it may also find that the worker closed.
        let pools = self.clone();
        tokio::spawn(async move {
            if tokio::time::timeout(Duration::from_secs(1), connection.ready()).await == Ok(true) {
                pools.keep(worker, connection, clock.now());
            }
        });
    }

    /// Closes the idle connections to a worker that went down or away.
    pub(crate) fn close_worker(&self, worker: WorkerId) {
        self.idle.lock().remove(&worker);
    }

    /// Closes what has been idle for too long, also of workers that are gone.
    pub(crate) fn close_idle(&self, now: Moment) {
        self.idle.lock().retain(|_, kept| {
            kept.retain(|(since, _)| now.since(*since) < IDLE_LIMIT);
            !kept.is_empty()
        });
    }

    fn keep(&self, worker: WorkerId, connection: UpstreamConnection, now: Moment) {
        let mut idle = self.idle.lock();
        let kept = idle.entry(worker).or_default();
        if kept.len() < PER_WORKER {
            kept.push((now, connection));
        }
    }
}
