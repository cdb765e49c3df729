//! The task behind a shared socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use bytes::Bytes;
use futures_util::FutureExt;
use kv_blocks::{DpRank, Target};
use kv_events::{Codec, Input, StreamState, frames, vllm};
use net::Clock;
use tokio::time::{MissedTickBehavior, interval, sleep};
use zmtp::{Limits, Sub, SubEvent};

use super::{
    PublisherInfo, PublisherLookup, SharedSpec, refused_peers, refused_peers::RefusedPeers,
};
use crate::{
    BlockSink,
    follower::{GO, REBIND, TICK},
    handle::{SharedStreams, SourceControl, StatusSender},
    status::{StreamFault, StreamStatus, StreamTotals},
    stream_driver::{DriverSpec, StreamDriver},
};

/// Longest accepted topic, bytes.
const MAX_TOPIC: usize = 1_024;

/// A topic and the rank its batches name.
type TopicKey = (Bytes, u32);

/// One publisher's stream.
#[derive(Debug)]
struct TopicStream {
    publisher: PublisherInfo,
    target: Target,
    driver: StreamDriver,
    /// The connection that carries it, until that ends: no other one may speak for the publisher
    /// meanwhile.
    peer: u64,
    is_connected: bool,
}

/// Follows all streams of one socket until stopped.
#[derive(Debug)]
pub(crate) struct SharedFollower {
    spec: SharedSpec,
    route: PublisherLookup,
    sink: Arc<dyn BlockSink>,
    clock: Clock,
    status: StatusSender,
    parts: SharedStreams,
    streams: BTreeMap<TopicKey, TopicStream>,
    /// Addresses of the connected peers; at most as many as the socket serves.
    addresses: BTreeMap<u64, IpAddr>,
    refused: RefusedPeers,
    /// Streams that changed since the last publication.
    touched: BTreeSet<TopicKey>,
    /// Counts of messages that belong to no stream.
    loose: StreamTotals,
    bound: bool,
    last_error: Option<String>,
}

impl SharedFollower {
    pub(crate) fn new(
        spec: SharedSpec,
        route: PublisherLookup,
        sink: Arc<dyn BlockSink>,
        clock: Clock,
        (status_sender, parts): (StatusSender, SharedStreams),
    ) -> Self {
        Self {
            spec,
            route,
            sink,
            clock,
            status: status_sender,
            parts,
            streams: BTreeMap::new(),
            addresses: BTreeMap::new(),
            refused: RefusedPeers::default(),
            touched: BTreeSet::new(),
            loose: StreamTotals::default(),
            bound: false,
            last_error: None,
        }
    }

    pub(crate) async fn run(mut self, mut control: SourceControl) {
        let mut sub = loop {
            match self.bind().await {
                Ok(sub) => break sub,
                Err(error) => self.last_error = Some(error),
            }
            self.publish();
            tokio::select! {
                () = sleep(REBIND) => {}
                _ = &mut control.stop => return,
            }
        };
        self.bound = true;
        self.publish();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = sub.next() => self.burst(event, || sub.next().now_or_never()),
                _ = ticks.tick() => self.tick(),
                // A shared socket has no replay endpoint.
                () = control.resync.notified() => {}
                _ = &mut control.stop => return,
            }
            self.publish();
            // Reading from a buffer never awaits, so the loop yields explicitly.
            tokio::task::coop::consume_budget().await;
        }
    }

    async fn bind(&self) -> Result<Sub, String> {
        let limits = Limits {
            max_message: self.spec.settings.max_message,
            max_frames: 8,
            ..Limits::default()
        };
        let (topics, peers) = ([self.spec.topic.as_bytes()], self.spec.peers.clone());
        let bound = Sub::bind_for(&self.spec.endpoint, &topics, limits, peers).await;
        bound.map(|(sub, _)| sub).map_err(|error| error.to_string())
    }

    /// Takes an event and the events already buffered behind it, so that a burst costs one
    /// publication.
    fn burst(&mut self, first: SubEvent, mut next: impl FnMut() -> Option<SubEvent>) {
        self.take(first);
        for _ in 1..GO {
            let Some(event) = next() else { return };
            self.take(event);
        }
    }

    fn take(&mut self, event: SubEvent) {
        match event {
            // The publisher is known from its first message on.
            SubEvent::Connected { peer, address } => {
                self.addresses
                    .extend(address.map(|address| (peer, address)));
            }
            SubEvent::Message { peer, frames } => self.message(peer, &frames),
            SubEvent::Disconnected { peer, reason } => {
                self.addresses.remove(&peer);
                for (key, stream) in self
                    .streams
                    .iter_mut()
                    .filter(|(_, stream)| stream.peer == peer)
                {
                    stream.is_connected = false;
                    stream.driver.disconnected();
                    stream.driver.record_fault(reason.clone());
                    self.touched.insert(key.clone());
                }
            }
            SubEvent::Unreachable { reason, refused } => {
                self.last_error = Some(reason);
                if let Some(address) = refused {
                    self.warn_of(address);
                }
            }
        }
    }

    fn warn_of(&mut self, refused: IpAddr) {
        self.refused
            .warn(&self.spec.endpoint, refused, self.clock.now());
    }

    fn message(&mut self, peer: u64, message: &[Bytes]) {
        let live = match frames::live(message) {
            Ok(live) => live,
            Err(error) => {
                self.loose.record_unreadable();
                self.last_error = Some(error.to_string());
                return;
            }
        };
        if live.topic.len() > MAX_TOPIC {
            self.loose.record_dropped();
            self.last_error = Some(format!(
                "a topic has {} bytes: expected {MAX_TOPIC} at most",
                live.topic.len()
            ));
            return;
        }
        // Copied: a slice would keep the whole message in memory.
        let key = (Bytes::copy_from_slice(live.topic), self.rank(live.payload));
        if !self.streams.contains_key(&key) && !self.add_stream(&key, peer) {
            self.loose.record_dropped();
            return;
        }
        let address = self.addresses.get(&peer).copied();
        let Some(stream) = self.streams.get_mut(&key) else {
            return;
        };
        if peer != stream.peer && !stream.is_connected && stream.publisher.peers.admits(address) {
            (stream.peer, stream.is_connected) = (peer, true);
            stream.driver.connected();
        }
        let now = self.clock.now();
        if stream
            .driver
            .quarantined_until()
            .is_some_and(|until| until <= now)
        {
            stream.driver.end_quarantine();
            stream.driver.connected();
        }
        if peer != stream.peer || stream.driver.is_quarantined() {
            stream.driver.record_dropped();
        } else {
            stream.driver.live(message);
        }
        self.touched.insert(key);
    }

    /// Returns the rank of a batch. Stores have no ranks: the value in that position of their
    /// batches is meaningless.
    fn rank(&self, payload: &[u8]) -> u32 {
        match self.spec.settings.format {
            Codec::Vllm | Codec::VllmOrStandard => vllm::rank_of(payload).unwrap_or(0),
            Codec::Mooncake => 0,
        }
    }

    /// Adds a new stream; returns `false` if its topic belongs to no known worker, or there are too
    /// many streams.
    fn add_stream(&mut self, key: &TopicKey, peer: u64) -> bool {
        if self.streams.len() >= self.spec.max_streams {
            self.last_error = Some(format!(
                "{} streams are followed already: no further ones are",
                self.streams.len()
            ));
            return false;
        }
        let Some(publisher) = self.route.of(&key.0) else {
            let topic: String = String::from_utf8_lossy(&key.0).chars().take(80).collect();
            self.last_error = Some(format!(
                "the topic {topic:?} is no known worker's: its messages are dropped"
            ));
            return false;
        };
        if let Some(address) = self.addresses.get(&peer).copied()
            && !publisher.peers.admits(Some(address))
        {
            self.last_error = Some(format!(
                "{address} sends events of {}, which is elsewhere: they are dropped; if it is its engine, add {}",
                publisher.worker,
                refused_peers::setting(address.to_canonical()),
            ));
            self.warn_of(address);
            return false;
        }
        let target = Target {
            worker: publisher.id,
            rank: DpRank(key.1),
        };
        let same = self
            .streams
            .iter()
            .find(|(_, stream)| stream.target == target);
        if let Some((old, stream)) = same.map(|(old, stream)| (old.clone(), stream))
            && !stream.is_connected
        {
            // The target connected again under another topic.
            self.sink.clear(target);
            self.parts.lock().remove(&target);
            self.streams.remove(&old);
        } else if same.is_some() {
            self.last_error = Some(format!(
                "two topics speak of rank {} of {}: one is enough",
                key.1, publisher.worker
            ));
            return false;
        }
        let spec = DriverSpec {
            target,
            worker: Arc::clone(&publisher.worker),
            endpoint: self.spec.endpoint.to_string(),
            defaults: publisher.defaults.clone(),
            sequencer: self.spec.settings.sequencer(false),
            stale_after: self.spec.settings.stale_after,
        };
        self.sink.register(target, &publisher.model);
        let mut driver = StreamDriver::new(spec, Arc::clone(&self.sink), self.clock);
        driver.connected();
        self.streams.insert(
            key.clone(),
            TopicStream {
                publisher,
                target,
                driver,
                peer,
                is_connected: true,
            },
        );
        true
    }

    /// Advances time. Drops streams whose topic belongs to another publisher by now, or to none.
    fn tick(&mut self) {
        let (route, sink, parts) = (&self.route, &self.sink, &self.parts);
        let before = self.streams.len();
        self.streams.retain(|(topic, _), stream| {
            let stays = route.of(topic).as_ref() == Some(&stream.publisher);
            if !stays {
                sink.clear(stream.target);
                parts.lock().remove(&stream.target);
            }
            stays
        });
        if self.streams.len() < before {
            self.status.touch();
        }
        for (key, stream) in &mut self.streams {
            stream.driver.feed(Input::Tick);
            self.touched.insert(key.clone());
        }
    }

    fn publish(&mut self) {
        let mut is_changed = false;
        {
            let mut parts = self.parts.lock();
            for key in std::mem::take(&mut self.touched) {
                let Some(stream) = self.streams.get(&key) else {
                    continue;
                };
                let fresh = stream.driver.status();
                if parts
                    .get(&stream.target)
                    .is_none_or(|(_, known)| *known != fresh)
                {
                    parts.insert(stream.target, (Arc::clone(&stream.publisher.worker), fresh));
                    is_changed = true;
                }
            }
        }
        if is_changed {
            self.status.touch();
        }
        self.status.publish(StreamStatus {
            state: if self.bound {
                StreamState::Live
            } else {
                StreamState::Connecting
            },
            last_error: self.last_error.clone().map(StreamFault::of_connection),
            totals: self.loose.clone(),
            ..StreamStatus::default()
        });
    }
}
