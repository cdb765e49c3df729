//! The sending end of the source: forwards one publisher's ZMQ sockets to a NATS subject.
//!
//! One task does all the work. Reading the ZMQ socket waits for nothing else, so that no publisher
//! waits for the relay; the [`Outbox`] lies between the socket and the publication.

mod notice;
mod outbox;
mod replays;

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{Client, client::PublishErrorKind};
use bytes::Bytes;
use kv_events::frames;
use nats_client::{ConnectionEvent, NatsConnection, NatsDialer, backoff};
use net::{Clock, Destinations, ListenError, TrustRoots};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use zmtp::{Endpoint, EndpointError, Limits, Sub, SubEvent};

pub use notice::RelayNotice;
use outbox::{Outbox, OutboxItem};

use super::{
    NatsCredentials, NatsEndpoint,
    wire::{self, EngineLinkNote},
};

/// Most bytes queued while NATS is unreachable or slow.
const OUTBOX: usize = 64 << 20;
/// Longest wait for the farewell message to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// The specification of a relay: its source and its destination.
#[derive(Clone, Debug)]
pub struct RelaySpec {
    /// The publisher's socket.
    pub endpoint: Endpoint,
    /// The publisher's replay socket; without it readers get no history over NATS.
    pub replay_endpoint: Option<Endpoint>,
    /// Prefix of the relayed topics.
    pub topic: String,
    /// Binds `endpoint`, to which the publisher connects.
    pub bind: bool,
    /// The server and the subject, which no other relay may publish on.
    pub to: NatsEndpoint,
    /// Credentials for the server.
    pub credentials: Option<NatsCredentials>,
    /// Trusted certificate authorities for encrypted connections; `None`: those of this machine.
    pub trust: Option<TrustRoots>,
}

/// Why a relay cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The publisher's socket cannot be connected to.
    #[error(transparent)]
    Connect(#[from] EndpointError),
    /// The socket for the publisher cannot be bound.
    #[error(transparent)]
    Bind(#[from] ListenError),
}

/// Counts of the publisher's messages by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Published to NATS.
    pub published: u64,
    /// Dropped because NATS was unreachable or slow.
    pub dropped: u64,
    /// Larger than the server accepts, in replays too.
    pub too_large: u64,
    /// Without a number, or with frames or a topic that cannot be relayed.
    pub not_relayable: u64,
}

#[derive(Debug, Default)]
struct RelayCounters {
    published: AtomicU64,
    too_large: AtomicU64,
    not_relayable: AtomicU64,
}

impl RelayCounters {
    /// Increments a counter and returns its value before.
    fn count(counter: &AtomicU64) -> u64 {
        counter.fetch_add(1, Ordering::Relaxed)
    }
}

/// Relays one publisher's messages.
pub struct NatsRelay {
    spec: RelaySpec,
    clock: Clock,
    notify: Box<dyn Fn(RelayNotice) + Send + Sync>,
    outbox: Mutex<Outbox>,
    filled: Notify,
    overflowing: AtomicBool,
    /// The dropped messages that were already reported.
    dropped_reported: AtomicU64,
    counters: Arc<RelayCounters>,
    /// The client of the current connection to NATS.
    client: Mutex<Option<Client>>,
}

impl NatsRelay {
    /// Creates a relay that reports notices for the operator to `notify`.
    pub fn new(
        spec: RelaySpec,
        clock: Clock,
        notify: impl Fn(RelayNotice) + Send + Sync + 'static,
    ) -> Self {
        Self {
            spec,
            clock,
            notify: Box::new(notify),
            outbox: Mutex::new(Outbox::new(OUTBOX)),
            filled: Notify::new(),
            overflowing: AtomicBool::new(false),
            dropped_reported: AtomicU64::new(0),
            counters: Arc::default(),
            client: Mutex::default(),
        }
    }

    /// Relays until `stop` is ready, however long the publisher or the server is unreachable.
    ///
    /// # Errors
    ///
    /// The publisher's endpoint cannot be connected to, or bound.
    pub async fn run<S: Future>(self, stop: S) -> Result<(S::Output, RelayCounts), RelayError> {
        let topics: &[&[u8]] = &[self.spec.topic.as_bytes()];
        let sub = if self.spec.bind {
            Sub::bind(&self.spec.endpoint, topics, Limits::default())
                .await?
                .0
        } else {
            Sub::connect(&self.spec.endpoint, topics, Limits::default())?
        };
        let stopped = tokio::select! {
            stopped = stop => stopped,
            never = self.read(sub) => match never {},
            never = self.publish() => match never {},
        };
        self.send_farewell().await;
        Ok((stopped, self.counts()))
    }

    fn counts(&self) -> RelayCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RelayCounts {
            published: of(&self.counters.published),
            dropped: self.outbox.lock().dropped(),
            too_large: of(&self.counters.too_large),
            not_relayable: of(&self.counters.not_relayable),
        }
    }

    /// Returns the engine's connection state as announced to readers. Requests are answered
    /// according to it.
    fn link_note(&self) -> EngineLinkNote {
        self.outbox.lock().announced_state()
    }

    /// Reads all messages of the publisher's socket.
    async fn read(&self, mut sub: Sub) -> std::convert::Infallible {
        let mut newest = None;
        let mut last_reported: Option<String> = None;
        loop {
            match sub.next().await {
                SubEvent::Connected { peer, .. } => {
                    newest = Some(peer);
                    last_reported = None;
                    (self.notify)(RelayNotice::EngineConnected(self.spec.endpoint.clone()));
                    self.push(OutboxItem::Note(EngineLinkNote::Connected));
                }
                // Where several publishers connect, only the newest is relayed.
                SubEvent::Message { peer, .. } if newest != Some(peer) => {}
                SubEvent::Message { frames, .. } => self.take(&frames),
                SubEvent::Disconnected { peer, reason } => {
                    if newest == Some(peer) {
                        newest = None;
                        self.push(OutboxItem::Note(EngineLinkNote::Disconnected));
                    }
                    self.report_lost(reason, &mut last_reported);
                }
                SubEvent::Unreachable { reason, .. } => {
                    self.report_lost(reason, &mut last_reported)
                }
            }
            // Reading from a buffer never awaits, and the publication runs in the same task.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn report_lost(&self, reason: String, last_reported: &mut Option<String>) {
        if last_reported.as_ref() != Some(&reason) {
            *last_reported = Some(reason.clone());
            (self.notify)(RelayNotice::EngineLost {
                endpoint: self.spec.endpoint.clone(),
                reason,
            });
        }
    }

    fn take(&self, message: &[Bytes]) {
        let live = match frames::live(message) {
            Ok(live) => live,
            Err(error) => return self.not_relayable(error.to_string()),
        };
        let Some(seq) = live.seq else {
            return self.not_relayable(
                "it has no sequence number, without which nobody sees what is missing".to_owned(),
            );
        };
        // The layout starts with the topic and ends with the payload.
        let (Some(topic), Some(payload)) = (message.first(), message.last()) else {
            return;
        };
        self.push(OutboxItem::Batch {
            seq,
            topic: topic.clone(),
            payload: payload.clone(),
        });
    }

    fn not_relayable(&self, reason: String) {
        if RelayCounters::count(&self.counters.not_relayable) == 0 {
            (self.notify)(RelayNotice::NotRelayable(reason));
        }
    }

    fn push(&self, item: OutboxItem) {
        let overflows = {
            let mut outbox = self.outbox.lock();
            let before = outbox.dropped();
            outbox.push(item);
            outbox.dropped() > before
        };
        if overflows && !self.overflowing.swap(true, Ordering::Relaxed) {
            (self.notify)(RelayNotice::Overflowing);
        }
        self.filled.notify_one();
    }

    /// Connects to NATS, publishes, and reconnects.
    async fn publish(&self) -> std::convert::Infallible {
        let dial = NatsDialer {
            server: self.spec.to.server().clone(),
            credentials: self.spec.credentials.clone(),
            trust: self.spec.trust.clone(),
            // The server comes from the configuration of the relay's operator.
            destinations: Destinations::Any,
            name: "warmroute events relay".to_owned(),
        };
        let mut backoff = backoff::reconnects();
        let mut last_reported: Option<String> = None;
        loop {
            let started = self.clock.now();
            match dial.open().await {
                Ok(link) => {
                    last_reported = None;
                    self.use_link(link).await;
                    self.client.lock().take();
                    (self.notify)(RelayNotice::NatsLost(dial.server.clone()));
                }
                Err(error) => {
                    let reason = error.to_string();
                    if last_reported.as_ref() != Some(&reason) {
                        last_reported = Some(reason.clone());
                        (self.notify)(RelayNotice::NatsUnreachable(reason));
                    }
                }
            }
            let lasted = self.clock.now().since(started);
            sleep(backoff::wait(&mut backoff, lasted, runtime::chance())).await;
        }
    }

    /// Publishes over one connection until it ends.
    async fn use_link(&self, mut link: NatsConnection) {
        let client = link.client.clone();
        let Ok(requests) = client.subscribe(self.spec.to.subject().replay()).await else {
            return;
        };
        *self.client.lock() = Some(client.clone());
        let state = {
            let mut outbox = self.outbox.lock();
            outbox.mark_gap();
            outbox.pop()
        };
        // Sent first, so that no answer overtakes it.
        if let Some(state) = state
            && self.send(&client, state).await.is_err()
        {
            return;
        }
        (self.notify)(RelayNotice::Relaying(self.spec.to.clone()));
        tokio::select! {
            () = self.watch(&mut link) => {}
            () = self.empty(&client) => {}
            () = replays::serve(self, &client, requests) => {}
        }
    }

    async fn watch(&self, link: &mut NatsConnection) {
        let mut last_reported: Option<String> = None;
        while let ConnectionEvent::Fault(reason) = link.next().await {
            if last_reported.as_ref() != Some(&reason) {
                last_reported = Some(reason.clone());
                (self.notify)(RelayNotice::NatsFault(reason));
            }
        }
    }

    /// Publishes the items of the outbox, present and future.
    async fn empty(&self, client: &Client) {
        loop {
            let next = self.outbox.lock().pop();
            let Some(item) = next else {
                if self.overflowing.swap(false, Ordering::Relaxed) {
                    let ever = self.outbox.lock().dropped();
                    let messages = ever - self.dropped_reported.swap(ever, Ordering::Relaxed);
                    (self.notify)(RelayNotice::Dropped { messages });
                }
                self.filled.notified().await;
                continue;
            };
            if self.send(client, item).await.is_err() {
                return;
            }
        }
    }

    /// Sends one item. `Err`: the connection is over.
    async fn send(&self, client: &Client, item: OutboxItem) -> Result<(), ()> {
        let (headers, payload, is_batch) = match item {
            OutboxItem::Note(note) => (wire::note_headers(note), Bytes::new(), false),
            OutboxItem::Batch {
                seq,
                topic,
                payload,
            } => match wire::batch_headers(seq, &topic) {
                Some(headers) => (headers, payload, true),
                None => {
                    self.not_relayable(format!(
                        "its number {seq} or its topic cannot stand in a header"
                    ));
                    return Ok(());
                }
            },
        };
        let bytes = payload.len();
        let sent = client
            .publish_with_headers(self.spec.to.subject().to_string(), headers, payload)
            .await;
        match sent {
            Ok(()) if is_batch => {
                RelayCounters::count(&self.counters.published);
            }
            Ok(()) => {}
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                if RelayCounters::count(&self.counters.too_large) == 0 {
                    (self.notify)(RelayNotice::TooLarge {
                        bytes,
                        limit: client.max_payload(),
                    });
                }
            }
            Err(_) => return Err(()),
        }
        Ok(())
    }

    /// Announces to readers that the relay ends; they would detect it later by themselves.
    async fn send_farewell(&self) {
        let Some(client) = self.client.lock().take() else {
            return;
        };
        let farewell = async {
            let headers = wire::note_headers(EngineLinkNote::Disconnected);
            let subject = self.spec.to.subject().to_string();
            if client
                .publish_with_headers(subject, headers, Bytes::new())
                .await
                .is_ok()
            {
                let _ = client.flush().await;
            }
        };
        let _ = timeout(FAREWELL, farewell).await;
    }
}

impl fmt::Debug for NatsRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}
