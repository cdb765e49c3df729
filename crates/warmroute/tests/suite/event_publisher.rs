//! A publisher of KV events that a test writes, beside an engine without a publisher.

use std::time::Duration;

use kv_events::{
    frames,
    vllm::{self, EventEncoding, WireEvent, WireHash, WireStored},
};
use zmtp::{Pub, PubSettings};

const PATIENCE: Duration = Duration::from_secs(20);

/// A PUB socket with batches in vLLM's format.
pub(crate) struct EventPublisher {
    socket: Pub,
    endpoint: String,
    next: u64,
}

impl EventPublisher {
    pub(crate) async fn start() -> Self {
        let any = "tcp://127.0.0.1:0".parse().unwrap();
        let (socket, endpoint) = Pub::bind(&any, PubSettings::default()).await.unwrap();
        Self {
            socket,
            endpoint: endpoint.to_string(),
            next: 0,
        }
    }

    /// A publisher that connects to the router's socket, as soon as it is subscribed to.
    pub(crate) async fn connected(endpoint: &str) -> Self {
        let at = endpoint.parse().unwrap();
        let publisher = Self {
            socket: Pub::connect(&at, PubSettings::default()).unwrap(),
            endpoint: endpoint.to_owned(),
            next: 0,
        };
        publisher.subscribed(1).await;
        publisher
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Waits for this many subscribers.
    pub(crate) async fn subscribed(&self, count: usize) {
        let mut subscribers = self.socket.watch_subscribers();
        tokio::time::timeout(PATIENCE, subscribers.wait_for(|found| *found == count))
            .await
            .expect("a subscriber")
            .expect("the socket is open");
    }

    /// Publishes a batch.
    pub(crate) fn publish(&mut self, events: &[WireEvent]) {
        self.publish_under("", events);
    }

    /// Publishes a batch under a topic.
    pub(crate) fn publish_under(&mut self, topic: &str, events: &[WireEvent]) {
        let payload = vllm::encode(1.0, Some(0), events, EventEncoding::CURRENT);
        self.publish_payload(topic, &payload);
    }

    /// Publishes these bytes as a batch.
    pub(crate) fn publish_payload(&mut self, topic: &str, payload: &[u8]) {
        self.socket
            .send(&frames::encode_live(topic.as_bytes(), self.next, payload));
        self.next += 1;
    }
}

/// Returns blocks of 16 tokens on a medium. The engine hash of the block behind `n` tokens of the
/// sequence is `name + n`; `front` tokens are in front of these.
pub(crate) fn blocks(name: u64, front: u64, tokens: &[u32], medium: &str) -> WireEvent {
    chunks(name, front, tokens, (16, medium))
}

/// The same in blocks of another size.
pub(crate) fn chunks(
    name: u64,
    front: u64,
    tokens: &[u32],
    (size, medium): (u32, &str),
) -> WireEvent {
    let count = tokens.len() as u64 / u64::from(size);
    let end = |block: u64| WireHash::from(name + front + block * u64::from(size));
    WireEvent::Stored(WireStored {
        hashes: (1..=count).map(end).collect(),
        parent: (front > 0).then(|| end(0)),
        tokens: tokens.to_vec(),
        block_size: size,
        medium: Some(medium.to_owned()),
        ..WireStored::default()
    })
}
