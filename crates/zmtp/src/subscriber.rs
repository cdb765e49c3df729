//! One subscriber of a [`Pub`](crate::Pub): its topics, its queue, and the task that writes it out.

use std::sync::Arc;

use bytes::Bytes;
use net::Stream;
use resilience::{ByteBudget, BytePermit};
use tokio::sync::mpsc;

use crate::{
    Disconnect,
    accept::Peer,
    codec::{Incoming, SocketType},
    connection::ZmtpConnection,
    publisher::PublisherShared,
};

/// Topic limit of one subscriber. One more ends the connection.
const MAX_TOPICS: usize = 1024;

/// The publisher's state of one subscriber.
#[derive(Debug)]
pub(crate) struct Subscriber {
    topics: Vec<Bytes>,
    queue: mpsc::Sender<(Bytes, BytePermit)>,
    queue_bytes: ByteBudget,
}

impl Subscriber {
    pub(crate) fn wants(&self, topic: &[u8]) -> bool {
        self.topics.iter().any(|prefix| topic.starts_with(prefix))
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        !self.topics.is_empty()
    }

    /// Queues a message unless that exceeds a limit; `false`: dropped.
    pub(crate) fn offer(&self, encoded: &Bytes) -> bool {
        // A single message longer than the limit still passes when the queue is empty.
        let permit = self.queue_bytes.try_take_capped(encoded.len());
        permit.is_some_and(|permit| self.queue.try_send((encoded.clone(), permit)).is_ok())
    }
}

/// Serves a subscriber that connected, until it leaves or the publisher is closed.
pub(crate) async fn accept(peer: Peer, shared: Arc<PublisherShared>) -> Result<(), Disconnect> {
    let number = peer.number;
    let (connection, _) =
        ZmtpConnection::accept(peer, SocketType::Pub, &shared.settings.limits).await?;
    serve(number, connection, shared).await
}

/// Serves a subscriber on an outgoing connection.
pub(crate) async fn connected(
    number: u64,
    stream: Stream,
    shared: Arc<PublisherShared>,
) -> Result<(), Disconnect> {
    let connection = ZmtpConnection::open(stream, SocketType::Pub, &shared.settings.limits).await?;
    serve(number, connection, shared).await
}

async fn serve(
    number: u64,
    mut connection: ZmtpConnection,
    shared: Arc<PublisherShared>,
) -> Result<(), Disconnect> {
    // When full, the publisher drops the new message for this subscriber and counts it.
    let (queue, mut messages) = mpsc::channel(shared.settings.queue_messages.max(1));
    let subscriber = Subscriber {
        topics: Vec::new(),
        queue,
        queue_bytes: ByteBudget::new(shared.settings.queue_bytes.max(1)),
    };
    if !shared.join(number, subscriber) {
        return Ok(());
    }
    let _leave = LeaveGuard {
        number,
        shared: Arc::clone(&shared),
    };
    loop {
        let has_capacity = connection.has_capacity();
        tokio::select! {
            turn = connection.turn() => match turn? {
                Some(Incoming::Subscribe(topic)) => {
                    // A subscriber sends nothing more, so silence must not cost its place.
                    connection.keep_active();
                    subscribe(&shared, number, topic)?;
                }
                Some(Incoming::Cancel(topic)) => shared.with(number, |subscriber| {
                    // Subscriptions count: two of the same prefix need two cancellations.
                    if let Some(at) = subscriber.topics.iter().position(|known| *known == topic) {
                        subscriber.topics.swap_remove(at);
                    }
                }),
                Some(_) | None => {}
            },
            message = messages.recv(), if has_capacity => match message {
                Some((message, _permit)) => connection.queue(&message),
                // The publisher closed and everything it had queued is out of the queue.
                None => return Ok(connection.flush().await?),
            },
        }
    }
}

fn subscribe(shared: &PublisherShared, number: u64, topic: Bytes) -> Result<(), Disconnect> {
    let mut topic_count = 0;
    shared.with(number, |subscriber| {
        subscriber.topics.push(topic);
        topic_count = subscriber.topics.len();
    });
    if topic_count > MAX_TOPICS {
        return Err(Disconnect::Io(std::io::Error::other(format!(
            "more than {MAX_TOPICS} subscriptions"
        ))));
    }
    Ok(())
}

struct LeaveGuard {
    number: u64,
    shared: Arc<PublisherShared>,
}

impl Drop for LeaveGuard {
    fn drop(&mut self) {
        self.shared.leave(self.number);
    }
}
