//! The requests in progress on a client's connection.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use http_body_util::BodyExt as _;
use hyper::body::Body;
use parking_lot::Mutex;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Duration, Instant, sleep, sleep_until},
};

use super::{ConnectionSlot, FramingError};

/// Interval at which a listener that leaves checks for the first head of a connection.
const HEAD_CHECK: Duration = Duration::from_millis(20);

/// Tracker of the requests and replies of a connection.
#[derive(Clone, Debug)]
pub struct ExchangeTracker(Arc<ClientState>);

#[derive(Debug)]
struct ClientState {
    slot: ConnectionSlot,
    /// Number of complete heads.
    heads: AtomicU64,
    /// The number of the refused head, and the reason.
    refused: OnceLock<(u64, FramingError)>,
    /// Whether the connection has left HTTP.
    upgraded: AtomicBool,
    progress: Mutex<Progress>,
}

/// The connection is idle while no request runs and nothing of a reply is left to write.
#[derive(Debug)]
struct Progress {
    /// Requests that have a permit of their client's address. At most one, unless the protocol
    /// multiplexes them.
    running: usize,
    /// Requests that wait for a permit.
    waiting: usize,
    /// A reply is complete, and some of it may still have to be written.
    flushing: bool,
    /// Whether several requests run at once. A reply may then end after its last flush, so that no
    /// flush is waited for.
    multiplexed: bool,
    /// When the connection became idle.
    idle_since: Instant,
}

impl ExchangeTracker {
    pub(super) fn new(slot: ConnectionSlot) -> Self {
        Self(Arc::new(ClientState {
            slot,
            heads: AtomicU64::new(0),
            refused: OnceLock::new(),
            upgraded: AtomicBool::new(false),
            progress: Mutex::new(Progress {
                running: 0,
                waiting: 0,
                flushing: false,
                multiplexed: false,
                idle_since: Instant::now(),
            }),
        }))
    }

    /// Records that the protocol runs several requests at once.
    pub(super) fn set_multiplexed(&self) {
        self.0.progress.lock().multiplexed = true;
    }

    /// Begins a request after its complete head: it is in progress until the returned guard is
    /// dropped. Waits while the client's address has its full share of requests in progress.
    ///
    /// Returns also whether the request's framing is valid: if not, its body must not be read, and
    /// the connection must close with its reply.
    pub async fn begin(&self) -> (ExchangeGuard, Result<(), FramingError>) {
        let waiting = WaitingRequest::new(Arc::clone(&self.0));
        let head = self.0.heads.fetch_add(1, Ordering::Release) + 1;
        let framing = match self.0.refused.get() {
            Some((refused, error)) if *refused <= head => Err(*error),
            _ => Ok(()),
        };
        let permit = match self.0.slot.try_acquire_request_slot() {
            Some(permit) => Some(permit),
            None => {
                self.0.set_idle_unless_running();
                self.0.slot.acquire_request_slot().await
            }
        };
        waiting.run();
        let guard = ExchangeGuard {
            state: Arc::clone(&self.0),
            _permit: permit,
        };
        (guard, framing)
    }

    /// Records that the connection leaves HTTP with its next reply.
    pub fn record_upgrade(&self) {
        self.0.upgraded.store(true, Ordering::Release);
    }

    /// Returns whether the connection has left HTTP.
    pub(super) fn is_upgraded(&self) -> bool {
        self.0.upgraded.load(Ordering::Acquire)
    }

    /// Records that the head with this number is refused.
    pub(super) fn refuse_head(&self, head: u64, error: FramingError) {
        // There is one: nothing follows it.
        let _ = self.0.refused.set((head, error));
    }

    /// Returns the connection's slot.
    pub fn slot(&self) -> &ConnectionSlot {
        &self.0.slot
    }

    /// Resolves when the connection has been idle for `most`.
    pub async fn idle_for(&self, most: Duration) {
        loop {
            let until = {
                let progress = self.0.progress.lock();
                let idle = progress.running + progress.waiting == 0 && !progress.flushing;
                // A running request ends later, and the connection is idle only from then on.
                let since = if idle {
                    progress.idle_since
                } else {
                    Instant::now()
                };
                since + most
            };
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Resolves when a head is complete.
    pub async fn has_begun(&self) {
        while self.heads() == 0 {
            sleep(HEAD_CHECK).await;
        }
    }

    /// Returns the number of complete heads so far.
    pub(super) fn heads(&self) -> u64 {
        self.0.heads.load(Ordering::Acquire)
    }

    /// Returns whether a request is in progress, or waits for its permit.
    pub(super) fn is_answering(&self) -> bool {
        let progress = self.0.progress.lock();
        progress.running + progress.waiting > 0
    }

    /// Records that all bytes are written.
    pub(super) fn record_flushed(&self) {
        let mut progress = self.0.progress.lock();
        if progress.flushing && progress.running == 0 {
            self.0.become_idle(&mut progress);
        }
    }
}

impl ClientState {
    /// Under the lock, so that a request that begins on another thread marks the slot busy later.
    fn become_idle(&self, progress: &mut Progress) {
        progress.flushing = false;
        progress.idle_since = Instant::now();
        self.slot.set_idle();
    }

    /// A connection whose requests all wait counts as idle, so that it may have to yield. It may
    /// directly follow another request.
    fn set_idle_unless_running(&self) {
        let progress = self.progress.lock();
        if progress.running == 0 {
            self.slot.set_idle();
        }
    }
}

/// A request that waits for its permit; its client may leave meanwhile.
struct WaitingRequest(Arc<ClientState>);

impl WaitingRequest {
    fn new(state: Arc<ClientState>) -> Self {
        state.progress.lock().waiting += 1;
        Self(state)
    }

    /// Counts the request as running.
    fn run(self) {
        let mut progress = self.0.progress.lock();
        progress.running += 1;
        self.0.slot.set_busy();
        drop(progress);
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.0.progress.lock().waiting -= 1;
    }
}

/// Guard of a request in progress.
#[derive(Debug)]
pub struct ExchangeGuard {
    state: Arc<ClientState>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for ExchangeGuard {
    fn drop(&mut self) {
        let mut progress = self.state.progress.lock();
        progress.running -= 1;
        if !progress.multiplexed {
            progress.flushing = true;
        } else if progress.running == 0 {
            self.state.become_idle(&mut progress);
        }
    }
}

/// Returns a reply's body that keeps its request in progress until it is sent; `None`: another part
/// does.
pub fn in_progress<B: Body>(
    body: B,
    answering: impl Into<Option<ExchangeGuard>>,
) -> impl Body<Data = B::Data, Error = B::Error> {
    let answering = answering.into();
    // The closure owns the guard, so that both are dropped together.
    body.map_err(move |error| {
        let _ = &answering;
        error
    })
}
