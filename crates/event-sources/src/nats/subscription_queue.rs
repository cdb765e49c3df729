//! A subscription's messages, in a queue that is bounded in bytes.
//!
//! `async-nats` bounds a subscription by messages only, and lets go of what comes when it is full without saying which.
//! So a task of its own takes messages out of there at once, however long the index needs for them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
};

/// What a message costs beside its payload: headers and its place in the queue.
const PLACE: usize = 512;

/// What is taken of a subscription.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubscriptionQueueSettings {
    /// Longer payloads are let go, bytes.
    pub(crate) max_message: usize,
    /// Messages that wait, bytes.
    pub(crate) max_bytes: usize,
    pub(crate) when_full: WhenFull,
}

/// What becomes of messages for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// They are let go, and counted.
    LetGo,
    /// The queue ends in front of the first.
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
    queue: mpsc::UnboundedReceiver<(QueuedMessage, OwnedSemaphorePermit)>,
    let_go: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl SubscriptionQueue {
    pub(crate) fn start(subscriber: Subscriber, settings: SubscriptionQueueSettings) -> Self {
        // Bounded by the room that each message in it holds.
        let (sender, queue) = mpsc::unbounded_channel();
        let let_go = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(carry(subscriber, settings, sender, Arc::clone(&let_go)));
        Self {
            queue,
            let_go,
            task,
        }
    }

    /// The next message; `None`: the connection is over, or the queue ended because it was full. May be cancelled without
    /// losing anything.
    pub(crate) async fn next(&mut self) -> Option<QueuedMessage> {
        self.queue.recv().await.map(|(taken, _)| taken)
    }

    /// The next message, if it is there already.
    pub(crate) fn try_next(&mut self) -> Option<QueuedMessage> {
        self.queue.try_recv().ok().map(|(taken, _)| taken)
    }

    /// Messages that were let go since this was asked last.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.let_go.swap(0, Ordering::Relaxed)
    }
}

impl Drop for SubscriptionQueue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut subscriber: Subscriber,
    settings: SubscriptionQueueSettings,
    queue: mpsc::UnboundedSender<(QueuedMessage, OwnedSemaphorePermit)>,
    let_go: Arc<AtomicU64>,
) {
    let room = settings.max_bytes.min(u32::MAX as usize);
    let ahead = Arc::new(Semaphore::new(room));
    while let Some(message) = subscriber.next().await {
        let too_large = message.payload.len() > settings.max_message;
        let kept = if too_large {
            0
        } else {
            message.length.max(message.payload.len())
        };
        // One that is larger than all room there is waits alone.
        let bytes = u32::try_from(kept.saturating_add(PLACE).min(room)).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&ahead).try_acquire_many_owned(bytes) else {
            let_go.fetch_add(1, Ordering::Relaxed);
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
