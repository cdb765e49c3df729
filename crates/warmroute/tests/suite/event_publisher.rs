//! A publisher of KV events that a test writes, beside an engine without a publisher.

use std::{path::Path, time::Duration};

use kv_events::{
    frames,
    vllm::{self, EventEncoding, WireEvent, WireHash, WireStored},
};
use zmtp::{Pub, PubSettings};

use crate::harness::{Program, RouterQueries as _};

const PATIENCE: Duration = Duration::from_secs(120);

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

/// A router by cached blocks before two engines that publish nothing: worker `a`, whose events are
/// the publisher's, and worker `b` without any.
pub(crate) struct PublishedWorker {
    pub(crate) publisher: EventPublisher,
    pub(crate) router: Program,
    _engines: [Program; 2],
}

impl PublishedWorker {
    pub(crate) async fn start() -> Self {
        let publisher = EventPublisher::start().await;
        let engines = [(); 2].map(|()| Program::engine(&["--no-kv-events", "--speed", "20"]));
        let yaml = format!(
            "workers:\n  - {{name: a, url: \"{}\", kv_events: {{endpoint: \"{}\"}}}}\n  - {{name: b, url: \"{}\", kv_events: {{source: none}}}}\n",
            engines[0].url(),
            publisher.endpoint(),
            engines[1].url()
        );
        let router = Program::serve_with(&yaml, &[], &["--policy", "kv-aware"]).ready(2);
        publisher.subscribed(1).await;
        Self {
            publisher,
            router,
            _engines: engines,
        }
    }
}

/// Returns a recorded batch.
pub(crate) fn recorded(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kv_events");
    std::fs::read(folder.join(format!("{name}.msgpack"))).expect("the fixture exists")
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
