//! The specification of a shared socket.

use std::{fmt, sync::Arc};

use kv_blocks::WorkerId;
use kv_index::KvIndex;
use net::Clock;
use parking_lot::Mutex;
use zmtp::{Endpoint, PeerFilter};

use super::follower::SharedFollower;
use crate::{
    BlockSink, EventDefaults, SourceHandle, SourceSettings, ZmqSource,
    handle::{SharedStreams, SourceInfo},
};

/// The publisher of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublisherInfo {
    /// The worker whose caches the events describe; the batches name the rank.
    pub id: WorkerId,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to.
    pub model: Arc<str>,
    /// Defaults for fields that the events lack.
    pub defaults: EventDefaults,
    /// Addresses from which it may publish.
    pub peers: PeerFilter,
}

/// Maps a topic to its publisher; `None`: it belongs to no known one (any more). Called for every
/// new topic and again from time to time, so it must return at once.
#[derive(Clone)]
pub struct PublisherLookup(Arc<PublisherLookupFn>);

type PublisherLookupFn = dyn Fn(&[u8]) -> Option<PublisherInfo> + Send + Sync;

impl PublisherLookup {
    /// Wraps a lookup function.
    pub fn new(route: impl Fn(&[u8]) -> Option<PublisherInfo> + Send + Sync + 'static) -> Self {
        Self(Arc::new(route))
    }

    pub(crate) fn of(&self, topic: &[u8]) -> Option<PublisherInfo> {
        (self.0)(topic)
    }
}

impl fmt::Debug for PublisherLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Route")
    }
}

/// A socket to bind.
#[derive(Clone, Debug)]
pub struct SharedSpec {
    /// Name of the socket as a whole in reports.
    pub name: Arc<str>,
    /// Address that publishers connect to.
    pub endpoint: Endpoint,
    /// Prefix of the accepted topics.
    pub topic: String,
    /// Most streams; messages of further ones are dropped and counted.
    pub max_streams: usize,
    /// Settings of each stream.
    pub settings: SourceSettings,
    /// Addresses from which peers may connect at all.
    pub peers: PeerFilter,
}

impl SharedSpec {
    /// Describes a socket by its defaults: topics `kv@...`, 4,096 streams.
    pub fn new(name: impl Into<Arc<str>>, endpoint: Endpoint) -> Self {
        Self {
            name: name.into(),
            endpoint,
            topic: "kv@".to_owned(),
            max_streams: 4_096,
            settings: SourceSettings::default(),
            peers: PeerFilter::default(),
        }
    }
}

impl ZmqSource {
    /// Binds a socket in a task of the current runtime, and follows every connected publisher that
    /// `route` knows. [`SourceHandle::reports`] has a row for each stream.
    pub fn spawn_shared(
        spec: SharedSpec,
        route: PublisherLookup,
        index: Arc<KvIndex>,
        clock: Clock,
    ) -> SourceHandle {
        let about = SourceInfo {
            kind: "zmq",
            worker: Arc::clone(&spec.name),
            rank: 0,
            endpoint: spec.endpoint.to_string(),
            replay_endpoint: None,
        };
        let parts = SharedStreams::new(Mutex::default());
        let shared_streams = Arc::clone(&parts);
        let sink: Arc<dyn BlockSink> = index;
        SourceHandle::start(about, clock, move |status_sender, control| {
            SharedFollower::new(spec, route, sink, clock, (status_sender, shared_streams))
                .run(control)
        })
        .with_shared_streams(parts)
    }
}
