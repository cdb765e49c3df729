//! What reader and applier know together: the state of the connection, and what the queue between them could not take.

use std::sync::atomic::{AtomicUsize, Ordering};

use kv_blocks::Moment;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use super::StreamMessage;

/// A message and the connection it came over.
#[derive(Debug)]
pub(crate) struct LinkMessage {
    pub(crate) connection: u64,
    pub(crate) message: StreamMessage,
}

/// How the connection stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    /// Connections made, ever; the number of the newest.
    pub(crate) connections: u64,
    /// Since when the newest has been there; `None`: it is over, or there was none.
    pub(crate) open_since: Option<Moment>,
    /// The last connection of which a message was let go.
    pub(crate) lossy: Option<u64>,
    /// Messages let go.
    pub(crate) dropped: u64,
    /// Messages that could not be events.
    pub(crate) unreadable: u64,
    pub(crate) last_error: Option<String>,
    /// No connection is to be made before.
    pub(crate) hold_until: Option<Moment>,
}

/// The reader's and the applier's common ground.
#[derive(Debug)]
pub(crate) struct ReaderChannel {
    state: Mutex<LinkState>,
    /// Bytes of the messages in the queue.
    queued_bytes: AtomicUsize,
    max_bytes: usize,
    /// Told of every change of the state.
    pub(crate) changed: Notify,
    /// Connections up to this number are to be given up.
    given_up: watch::Sender<u64>,
}

impl ReaderChannel {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            queued_bytes: AtomicUsize::new(0),
            max_bytes,
            changed: Notify::new(),
            given_up: watch::Sender::default(),
        }
    }

    pub(crate) fn state(&self) -> LinkState {
        self.state.lock().clone()
    }

    /// The last connection of which a message was let go.
    pub(crate) fn last_lossy_connection(&self) -> Option<u64> {
        self.state.lock().lossy
    }

    /// A connection is there; returns its number.
    pub(crate) fn opened(&self, now: Moment) -> u64 {
        self.change(|state| {
            state.connections += 1;
            state.open_since = Some(now);
            state.connections
        })
    }

    /// There is none any more, or none could be made.
    pub(crate) fn closed(&self, reason: String) {
        self.change(|state| {
            state.open_since = None;
            state.last_error = Some(reason);
        });
    }

    /// The connection was closed because it was given up; the reason for that is known already.
    pub(crate) fn closed_by_us(&self) {
        self.change(|state| state.open_since = None);
    }

    /// A message of this connection is lost.
    pub(crate) fn record_lost(&self, connection: u64, reason: &str) {
        self.change(|state| {
            state.dropped += 1;
            if state.lossy.replace(connection) != Some(connection) {
                state.last_error = Some(reason.to_owned());
            }
        });
    }

    /// A message that could not be an event was let go; nothing depends on it.
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

    /// Queues a message, without waiting; `false`: there was no room.
    pub(crate) fn try_push(&self, queue: &mpsc::Sender<LinkMessage>, queued: LinkMessage) -> bool {
        let bytes = queued.message.bytes();
        let before = self.queued_bytes.fetch_add(bytes, Ordering::AcqRel);
        let taken =
            before.saturating_add(bytes) <= self.max_bytes && queue.try_send(queued).is_ok();
        if !taken {
            self.queued_bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
        taken
    }

    /// A message was taken out of the queue.
    pub(crate) fn record_taken(&self, message: &StreamMessage) {
        self.queued_bytes
            .fetch_sub(message.bytes(), Ordering::AcqRel);
    }

    /// Has the reader close this connection, and every one before, and make no other before `hold`.
    pub(crate) fn give_up(&self, connection: u64, hold: Option<Moment>) {
        self.change(|state| state.hold_until = hold.or(state.hold_until));
        self.given_up
            .send_modify(|given_up| *given_up = connection.max(*given_up));
    }

    /// Waits until this connection is to be closed.
    pub(crate) async fn wait_for_give_up(&self, connection: u64) {
        let mut given_up = self.given_up.subscribe();
        if given_up
            .wait_for(|given_up| *given_up >= connection)
            .await
            .is_err()
        {
            // Cannot be: the sender is here.
            std::future::pending().await
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut LinkState) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_one();
        result
    }
}
