//! A subscription's messages, in a queue that is bounded in bytes.
//!
//! `async-nats` bounds a subscription by messages only, and when it is full drops messages without
//! naming them. So a separate task takes messages from it at once, however long the index needs for
//! them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use resilience::{ByteBudget, BytePermit};
use tokio::{sync::mpsc, task::JoinHandle};

/// Cost of a message besides its payload: headers and its entry in the queue.
const ENTRY_BYTES: usize = 512;

/// Limits of a subscription queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubscriptionQueueSettings {
    /// Longest payload, bytes; longer ones are dropped.
    pub(crate) max_message: usize,
    /// Most bytes of queued messages.
    pub(crate) max_bytes: usize,
    pub(crate) when_full: WhenFull,
}

/// Behaviour of a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// Drops the message and counts it.
    Drop,
    /// Ends the queue in front of the first message that does not fit.
    End,
}

/// A message, or the size of one that was too large.
#[derive(Debug)]
pub(crate) enum QueuedMessage {
    Message(Box<Message>),
    TooLarge(usize),
}

/// The queue. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct SubscriptionQueue {
    queue: mpsc::UnboundedReceiver<(QueuedMessage, BytePermit)>,
    dropped: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl SubscriptionQueue {
    pub(crate) fn start(subscriber: Subscriber, settings: SubscriptionQueueSettings) -> Self {
        // Bounded by the bytes that each queued message holds.
        let (sender, queue) = mpsc::unbounded_channel();
        let dropped = Arc::new(AtomicU64::new(0));
        let task = runtime::spawn(forward(subscriber, settings, sender, Arc::clone(&dropped)));
        Self {
            queue,
            dropped,
            task,
        }
    }

    /// Returns the next message; `None`: the connection is over, or the queue ended because it was
    /// full. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<QueuedMessage> {
        self.queue.recv().await.map(|(taken, _)| taken)
    }

    /// Returns the next message if it has arrived already.
    pub(crate) fn try_next(&mut self) -> Option<QueuedMessage> {
        self.queue.try_recv().ok().map(|(taken, _)| taken)
    }

    /// Returns the number of messages dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

impl Drop for SubscriptionQueue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    mut subscriber: Subscriber,
    settings: SubscriptionQueueSettings,
    queue: mpsc::UnboundedSender<(QueuedMessage, BytePermit)>,
    dropped: Arc<AtomicU64>,
) {
    let budget = ByteBudget::new(settings.max_bytes);
    while let Some(message) = subscriber.next().await {
        let too_large = message.payload.len() > settings.max_message;
        let retained = if too_large {
            0
        } else {
            message.length.max(message.payload.len())
        };
        let Some(permit) = budget.try_take_capped(retained.saturating_add(ENTRY_BYTES)) else {
            dropped.fetch_add(1, Ordering::Relaxed);
            if settings.when_full == WhenFull::End {
                return;
            }
            continue;
        };
        let taken = if too_large {
            QueuedMessage::TooLarge(message.payload.len())
        } else {
            QueuedMessage::Message(Box::new(message))
        };
        if queue.send((taken, permit)).is_err() {
            return;
        }
    }
}
