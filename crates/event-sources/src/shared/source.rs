//! What such a socket needs to be followed.

use std::{fmt, sync::Arc};

use kv_blocks::WorkerId;
use kv_index::KvIndex;
use net::Clock;
use parking_lot::Mutex;
use zmtp::Endpoint;

use super::follower::SharedFollower;
use crate::{
    BlockSink, EventDefaults, SourceHandle, SourceSettings, ZmqSource,
    handle::{SharedStreams, SourceInfo},
};

/// Whose stream a topic is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublisherInfo {
    /// The worker whose caches it speaks of; the batches say of which rank.
    pub id: WorkerId,
    /// Its name.
    pub worker: Arc<str>,
    /// The model its blocks belong to.
    pub model: Arc<str>,
    /// What stands in where its events say nothing.
    pub defaults: EventDefaults,
}

/// Says whose stream a topic is; `None`: nobody's that is known (any more). Asked for every new topic and again from time
/// to time, so it must answer at once.
#[derive(Clone)]
pub struct PublisherLookup(Arc<PublisherLookupFn>);

type PublisherLookupFn = dyn Fn(&[u8]) -> Option<PublisherInfo> + Send + Sync;

impl PublisherLookup {
    /// What this function says.
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
    /// What the socket as a whole is called in reports.
    pub name: Arc<str>,
    /// Where publishers connect to.
    pub endpoint: Endpoint,
    /// Only topics that start with this.
    pub topic: String,
    /// Streams followed at most; messages of further ones are dropped, counted.
    pub max_streams: usize,
    /// How each stream is read.
    pub settings: SourceSettings,
}

impl SharedSpec {
    /// A socket of which nothing but this is known: topics `kv@...`, 4,096 streams.
    pub fn new(name: impl Into<Arc<str>>, endpoint: Endpoint) -> Self {
        Self {
            name: name.into(),
            endpoint,
            topic: "kv@".to_owned(),
            max_streams: 4_096,
            settings: SourceSettings::default(),
        }
    }
}

impl ZmqSource {
    /// Binds a socket, in a task of the current runtime, and follows everybody who connects to it and whom `route` knows.
    /// [`SourceHandle::reports`] has a row for each stream.
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
        let shown = Arc::clone(&parts);
        let sink: Arc<dyn BlockSink> = index;
        SourceHandle::start(about, clock, move |outlet, orders| {
            SharedFollower::new(spec, route, sink, clock, (outlet, shown)).run(orders)
        })
        .with_shared_streams(parts)
    }
}
