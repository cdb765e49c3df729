//! PUB: sends to every subscriber, and waits for none.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use net::{Address, ListenError, listen};
use parking_lot::Mutex;
use supervision::Task;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::{
    Endpoint, EndpointError, Limits,
    accept::AcceptLoop,
    backoff,
    codec::encode_message,
    subscriber::{self, Subscriber},
};

/// Settings of a [`Pub`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PubSettings {
    /// Limits on messages of subscribers.
    pub limits: Limits,
    /// Queue limit per subscriber in messages; when full the new message is dropped for that
    /// subscriber and counted.
    pub queue_messages: usize,
    /// Queue limit per subscriber in bytes; when full the new message is dropped for that
    /// subscriber and counted.
    pub queue_bytes: usize,
}

impl Default for PubSettings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            queue_messages: 65_536,
            queue_bytes: 256 << 20,
        }
    }
}

/// A publisher. Dropping it ends all connections and discards their queues.
#[derive(Debug)]
pub struct Pub {
    shared: Arc<PublisherShared>,
    link: PublisherLink,
}

#[derive(Debug)]
enum PublisherLink {
    Binds(AcceptLoop),
    Connects(DialLoop),
}

impl Pub {
    /// Binds a socket for subscribers. The returned endpoint has the port that the system chose.
    pub async fn bind(
        endpoint: &Endpoint,
        settings: PubSettings,
    ) -> Result<(Self, Endpoint), ListenError> {
        let listener = listen(&endpoint.to_listen_addr()).await?;
        let bound = Endpoint::from(listener.address().address());
        let shared = Arc::new(PublisherShared::new(settings));
        let served = Arc::clone(&shared);
        let most = shared.settings.limits.max_peers;
        let link = PublisherLink::Binds(AcceptLoop::start(listener, most, move |peer| {
            let shared = Arc::clone(&served);
            async move {
                if let Err(reason) = subscriber::accept(peer, shared).await {
                    tracing::debug!(%reason, "subscriber left");
                }
            }
        }));
        Ok((Self { shared, link }, bound))
    }

    /// Connects to one listening subscriber; reconnects after 100 ms, doubling up to 2 s.
    pub fn connect(endpoint: &Endpoint, settings: PubSettings) -> Result<Self, EndpointError> {
        let address = endpoint.to_address()?;
        let shared = Arc::new(PublisherShared::new(settings));
        let link = PublisherLink::Connects(DialLoop(runtime::spawn(keep_dialling(
            address,
            Arc::clone(&shared),
        ))));
        Ok(Self { shared, link })
    }

    /// Sends a message to every subscriber with a prefix of its first frame; never waits.
    pub fn send<F: AsRef<[u8]>>(&self, frames: &[F]) {
        let Some(topic) = frames.first() else { return };
        let mut encoded = BytesMut::new();
        encode_message(frames, &mut encoded);
        let encoded = encoded.freeze();
        let subscribers = self.shared.subscribers.lock();
        for subscriber in subscribers.iter().flat_map(BTreeMap::values) {
            if subscriber.wants(topic.as_ref()) && !subscriber.offer(&encoded) {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of connections with a subscription.
    pub fn subscribers(&self) -> usize {
        *self.shared.subscribed.borrow()
    }

    /// Watches [`Pub::subscribers`].
    pub fn watch_subscribers(&self) -> watch::Receiver<usize> {
        self.shared.subscribed.subscribe()
    }

    /// Returns the messages dropped so far because a subscriber's queue was full, counted once per
    /// subscriber.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Stops accepting subscribers and gives queued messages this long to be sent.
    pub async fn close(self, linger: Duration) {
        // Without their senders the connections end by themselves after their last write.
        let senders = self.shared.subscribers.lock().take();
        let mut open = self.shared.connected.subscribe();
        drop(senders);
        let _ = tokio::time::timeout(linger, open.wait_for(|count| *count == 0)).await;
        match self.link {
            PublisherLink::Binds(accepting) => drop(accepting),
            PublisherLink::Connects(dialling) => drop(dialling),
        }
    }
}

/// State that the publisher and its connections share.
#[derive(Debug)]
pub(crate) struct PublisherShared {
    pub(crate) settings: PubSettings,
    /// `None` once the publisher is closing.
    subscribers: Mutex<Option<BTreeMap<u64, Subscriber>>>,
    connected: watch::Sender<usize>,
    subscribed: watch::Sender<usize>,
    dropped: AtomicU64,
}

impl PublisherShared {
    fn new(settings: PubSettings) -> Self {
        Self {
            settings,
            subscribers: Mutex::new(Some(BTreeMap::new())),
            connected: watch::Sender::new(0),
            subscribed: watch::Sender::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Adds a subscriber; `false`: the publisher is closing.
    pub(crate) fn join(&self, number: u64, subscriber: Subscriber) -> bool {
        let mut subscribers = self.subscribers.lock();
        let Some(subscribers) = subscribers.as_mut() else {
            return false;
        };
        subscribers.insert(number, subscriber);
        self.connected.send_modify(|count| *count += 1);
        true
    }

    pub(crate) fn with(&self, number: u64, change: impl FnOnce(&mut Subscriber)) {
        let mut subscribers = self.subscribers.lock();
        if let Some(subscriber) = subscribers.as_mut().and_then(|all| all.get_mut(&number)) {
            change(subscriber);
        }
        self.count(subscribers.as_ref());
    }

    pub(crate) fn leave(&self, number: u64) {
        let mut subscribers = self.subscribers.lock();
        if let Some(subscribers) = subscribers.as_mut() {
            subscribers.remove(&number);
        }
        self.count(subscribers.as_ref());
        self.connected.send_modify(|count| *count -= 1);
    }

    fn count(&self, subscribers: Option<&BTreeMap<u64, Subscriber>>) {
        let now = subscribers.map_or(0, |all| {
            all.values().filter(|one| one.is_subscribed()).count()
        });
        self.subscribed
            .send_if_modified(|count| std::mem::replace(count, now) != now);
    }
}

/// A running dial loop. Dropping it ends the loop and its connection.
#[derive(Debug)]
struct DialLoop(JoinHandle<()>);

impl Drop for DialLoop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_dialling(address: Address, shared: Arc<PublisherShared>) {
    let mut number = 0;
    let mut task = Task::new("zmtp_dial");
    while task
        .attempt(dial(&address, &shared, &mut number))
        .await
        .is_none()
    {}
}

/// Each connection gets its own number, over all attempts.
async fn dial(address: &Address, shared: &Arc<PublisherShared>, number: &mut u64) {
    let mut backoff = backoff::reconnects();
    loop {
        *number += 1;
        let start = Instant::now();
        let served = async {
            let stream = net::connect(address, shared.settings.limits.handshake_timeout).await?;
            subscriber::connected(*number, stream, Arc::clone(shared)).await
        };
        match served.await {
            Ok(()) => return,
            Err(reason) => tracing::debug!(%reason, %address, "subscriber lost"),
        }
        tokio::time::sleep(backoff.after(start.elapsed())).await;
    }
}
