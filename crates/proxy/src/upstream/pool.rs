//! Connections to workers, and the idle ones of each worker.

use std::{collections::HashMap, sync::Arc, time::Duration};

use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use kv_blocks::{Moment, WorkerId};
use net::Clock;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::task::AbortHandle;

use super::{OutgoingBody, local_faults::LocalFaults};

/// Longest idle time of a connection: below the 5 s after which Python engines close theirs, so
/// that a request rarely meets a connection that is closing.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// Most idle connections per worker. Further ones are closed.
const PER_WORKER: usize = 512;

/// Most buffered bytes of a reply whose client does not read. A reply's head must fit, too.
const READ_BUFFER: usize = 64 * 1024;

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
        while let Some((since, connection)) = connections.pop() {
            if now.since(since) >= IDLE_LIMIT {
                // The connections below were used even longer ago.
                connections.clear();
                return None;
            }
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    /// Returns a connection whose reply was read to its end.
    pub(super) fn release(&self, worker: WorkerId, mut connection: UpstreamConnection) {
        if connection.is_ready() {
            self.keep(worker, connection);
            return;
        }
        // The driver needs one more poll to see the end of the reply; it may also find that the
        // worker closed.
        let pools = self.clone();
        runtime::spawn(async move {
            if tokio::time::timeout(Duration::from_secs(1), connection.ready()).await == Ok(true) {
                pools.keep(worker, connection);
            }
        });
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

    pub(super) fn keep(&self, worker: WorkerId, connection: UpstreamConnection) {
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        let connections = idle.entry(worker).or_default();
        if connections.len() < PER_WORKER {
            connections.push((now, connection));
        }
    }
}

/// An open connection. Dropping it closes the socket at once, in any state: this is how the engine
/// notices a client that hung up. Only [`super::UpstreamBody::release`] keeps one alive.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    sender: SendRequest<OutgoingBody>,
    driver: AbortHandle,
}

impl UpstreamConnection {
    /// Performs the HTTP/1 handshake on a fresh stream.
    pub(super) async fn handshake(stream: net::Stream) -> hyper::Result<Self> {
        let (sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake::<_, OutgoingBody>(TokioIo::new(stream))
            .await?;
        // Owned by this value: aborted on drop, and ended by itself when the worker closes.
        let driver = runtime::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to a worker ended");
            }
        })
        .abort_handle();
        Ok(Self { sender, driver })
    }

    /// Returns the request side.
    pub(super) fn sender(&mut self) -> &mut SendRequest<OutgoingBody> {
        &mut self.sender
    }

    /// Returns whether another request can be sent now.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }

    /// Waits until the previous reply is read to its end.
    pub(super) async fn ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }
}

impl Drop for UpstreamConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
