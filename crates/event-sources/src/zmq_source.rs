//! A stream over ZMQ, from one publisher: what it needs to be followed.

use std::{sync::Arc, time::Duration};

use kv_blocks::{BlockSize, Target};
use kv_events::{Codec, SequencerSettings};
use kv_index::KvIndex;
use net::{Clock, Destinations};
use zmtp::Endpoint;

use crate::{
    BlockSink, SourceHandle,
    follower::{PENDING_BYTES, ZmqFollower},
    handle::SourceInfo,
    stream_driver::DriverSpec,
};

/// One stream to follow.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// Whose cache it speaks of.
    pub target: Target,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to; registered with the index before anything is applied.
    pub model: Arc<str>,
    /// The publisher's socket, with the worker's host in it.
    pub endpoint: Endpoint,
    /// The replay socket, with the worker's host in it.
    pub replay_endpoint: Option<Endpoint>,
    /// Only topics that start with this.
    pub topic: String,
    /// Bind `endpoint` and let the publisher connect, in place of connecting to it.
    pub bind: bool,
    /// What stands in where its events say nothing.
    pub defaults: EventDefaults,
    /// Limits and times.
    pub settings: SourceSettings,
}

impl SourceSpec {
    /// A stream of which nothing but this is known.
    pub fn new(
        target: Target,
        worker: impl Into<Arc<str>>,
        model: impl Into<Arc<str>>,
        endpoint: Endpoint,
    ) -> Self {
        Self {
            target,
            worker: worker.into(),
            model: model.into(),
            endpoint,
            replay_endpoint: None,
            topic: String::new(),
            bind: false,
            defaults: EventDefaults::default(),
            settings: SourceSettings::default(),
        }
    }

    pub(crate) fn track(&self) -> DriverSpec {
        DriverSpec {
            target: self.target,
            worker: Arc::clone(&self.worker),
            endpoint: self.endpoint.to_string(),
            defaults: self.defaults.clone(),
            sequencer: self.settings.sequencer(self.replay_endpoint.is_some()),
            stale_after: self.settings.stale_after,
        }
    }
}

/// What is known of a stream's blocks beside its events (contract MC11). All `None` for a publisher that says everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventDefaults {
    /// The adapter of sequences that name none.
    pub lora: Option<Arc<str>>,
    /// The salt of sequences that name none.
    pub salt: Option<Arc<str>>,
    /// Tokens per block. Blocks of another size are counted and not taken: nobody would ever find them.
    pub block_size: Option<BlockSize>,
}

/// How a stream is read: what its payloads are, limits and times.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// What the payloads are.
    pub format: Codec,
    /// Which addresses may be connected to.
    pub destinations: Destinations,
    /// Longest accepted message, bytes.
    pub max_message: usize,
    /// Live batches kept while history is fetched.
    pub queue_batches: usize,
    /// A connected stream without a message is called stale after this.
    pub stale_after: Duration,
    /// Longest wait for a replay's connection and for its first message; then it has failed. Once the answer has begun,
    /// each next message may take as long, but 2 s at most.
    pub replay_timeout: Duration,
}

impl Default for SourceSettings {
    fn default() -> Self {
        Self {
            format: Codec::Vllm,
            destinations: Destinations::Any,
            max_message: 64 << 20,
            queue_batches: 65_536,
            stale_after: Duration::from_secs(60),
            replay_timeout: Duration::from_secs(5),
        }
    }
}

impl SourceSettings {
    pub(crate) fn sequencer(&self, replay: bool) -> SequencerSettings {
        SequencerSettings {
            codec: self.format,
            replay,
            max_pending_batches: self.queue_batches,
            max_pending_bytes: PENDING_BYTES.max(self.max_message),
        }
    }
}

/// Follows one publisher's ZMQ sockets.
#[derive(Debug)]
pub struct ZmqSource;

impl ZmqSource {
    /// Starts following, in a task of the current runtime; reconnects until stopped.
    pub fn spawn(spec: SourceSpec, index: Arc<KvIndex>, clock: Clock) -> SourceHandle {
        Self::spawn_into(spec, index, clock)
    }

    /// The same for a stream whose updates go elsewhere, as into a [`crate::FanOut`].
    pub fn spawn_into(spec: SourceSpec, sink: Arc<dyn BlockSink>, clock: Clock) -> SourceHandle {
        let about = SourceInfo {
            kind: "zmq",
            worker: Arc::clone(&spec.worker),
            rank: spec.target.rank.0,
            endpoint: spec.endpoint.to_string(),
            replay_endpoint: spec.replay_endpoint.as_ref().map(Endpoint::to_string),
        };
        SourceHandle::start(about, clock, |outlet, orders| {
            ZmqFollower::new(spec, sink, clock, outlet).run(orders)
        })
    }
}
