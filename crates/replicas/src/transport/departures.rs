//! Messages on their way into the queue of a NATS connection.

use std::{collections::VecDeque, fmt};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use nats_client::{Client, Subject};
use tokio::task::coop::unconstrained;

/// Most messages that wait; further ones are dropped.
const MOST_WAITING: usize = 256;

/// Messages to one subject, in their order. The connection's queue is usually free; while it is full
/// one message keeps its place in the line before it, which others wait in too.
pub(super) struct Departures {
    subject: Subject,
    /// The message that waits for a free place.
    first: Option<BoxFuture<'static, ()>>,
    /// Those behind it, at most [`MOST_WAITING`].
    others: VecDeque<Bytes>,
}

impl fmt::Debug for Departures {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.others.len() + usize::from(self.first.is_some());
        to.debug_struct("Departures")
            .field("subject", &self.subject)
            .field("waiting", &waiting)
            .finish()
    }
}

impl Departures {
    pub(super) fn new(subject: Subject) -> Self {
        Self {
            subject,
            first: None,
            others: VecDeque::new(),
        }
    }

    /// Sends a message, now or after those that wait. Returns whether there was room.
    pub(super) fn send(&mut self, client: &Client, message: Bytes) -> bool {
        if self.first.is_none() {
            self.start(client, message);
            return true;
        }
        let has_room = self.others.len() < MOST_WAITING;
        if has_room {
            self.others.push_back(message);
        }
        has_room
    }

    /// Sends the messages that wait. Never ends while there are none; cancel-safe.
    pub(super) async fn advance(&mut self, client: &Client) {
        match &mut self.first {
            Some(first) => first.await,
            None => std::future::pending().await,
        }
        self.first = None;
        while self.first.is_none()
            && let Some(next) = self.others.pop_front()
        {
            self.start(client, next);
        }
    }

    fn start(&mut self, client: &Client, message: Bytes) {
        let (client, subject) = (client.clone(), self.subject.clone());
        let mut sent = async move {
            // It fails with the connection, whose end is seen elsewhere.
            let _ = client.publish(subject, message).await;
        }
        .boxed();
        if unconstrained(&mut sent).now_or_never().is_none() {
            self.first = Some(sent);
        }
    }
}
