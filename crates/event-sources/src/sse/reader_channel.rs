//! The state that reader and applier share: the connection, and the messages that the queue between
//! them dropped.

use kv_blocks::Moment;
use parking_lot::Mutex;
use resilience::{ByteBudget, BytePermit};
use tokio::sync::{Notify, mpsc, watch};

use super::StreamMessage;

/// A message and the connection that carried it.
#[derive(Debug)]
pub(crate) struct LinkMessage {
    pub(crate) connection: u64,
    pub(crate) message: StreamMessage,
    _room: BytePermit,
}

/// State of the connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    /// Total of connections, which is also the number of the newest.
    pub(crate) connections: u64,
    /// Start of the newest connection; `None`: it is over, or there was none.
    pub(crate) open_since: Option<Moment>,
    /// The last connection with a dropped message.
    pub(crate) lossy: Option<u64>,
    /// Dropped messages.
    pub(crate) dropped: u64,
    /// Messages that could not be events.
    pub(crate) unreadable: u64,
    pub(crate) last_error: Option<String>,
    /// Earliest time of the next connection.
    pub(crate) paused_until: Option<Moment>,
}

/// The channel between reader and applier.
#[derive(Debug)]
pub(crate) struct ReaderChannel {
    state: Mutex<LinkState>,
    /// The byte bound of the queue.
    queue_bytes: ByteBudget,
    /// Notified of every change of the state.
    pub(crate) changed: Notify,
    /// Connections up to this number must close.
    given_up: watch::Sender<u64>,
}

impl ReaderChannel {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            queue_bytes: ByteBudget::new(max_bytes),
            changed: Notify::new(),
            given_up: watch::Sender::default(),
        }
    }

    pub(crate) fn state(&self) -> LinkState {
        self.state.lock().clone()
    }

    /// Returns the last connection with a dropped message.
    pub(crate) fn last_lossy_connection(&self) -> Option<u64> {
        self.state.lock().lossy
    }

    /// Records a new connection and returns its number.
    pub(crate) fn opened(&self, now: Moment) -> u64 {
        self.change(|state| {
            state.connections += 1;
            state.open_since = Some(now);
            state.connections
        })
    }

    /// Records the end of the connection, or a failed attempt.
    pub(crate) fn closed(&self, reason: String) {
        self.change(|state| {
            state.open_since = None;
            state.last_error = Some(reason);
        });
    }

    /// Records that the reader closed a given-up connection; the reason is known already.
    pub(crate) fn closed_by_us(&self) {
        self.change(|state| state.open_since = None);
    }

    /// Records a lost message of this connection.
    pub(crate) fn record_lost(&self, connection: u64, reason: &str) {
        self.change(|state| {
            state.dropped += 1;
            if state.lossy.replace(connection) != Some(connection) {
                state.last_error = Some(reason.to_owned());
            }
        });
    }

    /// Records a skipped message that could not be an event; no state depends on it.
    pub(crate) fn record_skipped(&self, oversized: bool, reason: &str) {
        self.change(|state| {
            let count = if oversized {
                &mut state.dropped
            } else {
                &mut state.unreadable
            };
            *count += 1;
            state.last_error = Some(reason.to_owned());
        });
    }

    /// Queues a message without waiting; returns `false` if the queue is full.
    pub(crate) fn try_push(
        &self,
        queue: &mpsc::Sender<LinkMessage>,
        connection: u64,
        message: StreamMessage,
    ) -> bool {
        let Some(room) = self.queue_bytes.try_take(message.bytes()) else {
            return false;
        };
        let queued = LinkMessage {
            connection,
            message,
            _room: room,
        };
        queue.try_send(queued).is_ok()
    }

    /// Makes the reader close this connection and every earlier one, and open no other before
    /// `until`.
    pub(crate) fn give_up(&self, connection: u64, until: Option<Moment>) {
        self.change(|state| state.paused_until = until.or(state.paused_until));
        self.given_up
            .send_modify(|given_up| *given_up = connection.max(*given_up));
    }

    /// Waits until this connection must close.
    pub(crate) async fn wait_for_give_up(&self, connection: u64) {
        let mut given_up = self.given_up.subscribe();
        if given_up
            .wait_for(|given_up| *given_up >= connection)
            .await
            .is_err()
        {
            // Unreachable: `self` owns the sender.
            std::future::pending().await
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut LinkState) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_one();
        result
    }
}
