//! The specification of a stream over ZMQ, from one publisher.

use std::{sync::Arc, time::Duration};

use kv_blocks::{BlockSize, StreamPosition, Target};
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
    /// The target whose cache the events describe.
    pub target: Target,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to; registered with the index before any update is applied.
    pub model: Arc<str>,
    /// The publisher's socket, including the worker's host.
    pub endpoint: Endpoint,
    /// The replay socket, including the worker's host.
    pub replay_endpoint: Option<Endpoint>,
    /// Prefix of the accepted topics.
    pub topic: String,
    /// Binds `endpoint`, to which the publisher connects, instead of connecting to it.
    pub bind: bool,
    /// Defaults for fields that the events lack.
    pub defaults: EventDefaults,
    /// The position of the target's blocks from an earlier process, if it has some: see
    /// [`KvIndex::resume_position`].
    pub resume: Option<StreamPosition>,
    /// Limits and times.
    pub settings: SourceSettings,
}

impl SourceSpec {
    /// Describes a stream with default settings.
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
            resume: None,
            settings: SourceSettings::default(),
        }
    }

    pub(crate) fn driver_spec(&self) -> DriverSpec {
        DriverSpec {
            target: self.target,
            worker: Arc::clone(&self.worker),
            endpoint: self.endpoint.to_string(),
            defaults: self.defaults.clone(),
            sequencer: SequencerSettings {
                resume: self.resume,
                ..self.settings.sequencer(self.replay_endpoint.is_some())
            },
            stale_after: self.settings.stale_after,
        }
    }
}

/// Properties of a stream's blocks that its events lack (contract MC11). All `None` for a publisher
/// that sends every field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventDefaults {
    /// The adapter of sequences that name none.
    pub lora: Option<Arc<str>>,
    /// The salt of sequences that name none.
    pub salt: Option<Arc<str>>,
    /// Tokens per block. Blocks of another size on the device are counted and rejected: no lookup
    /// would find them.
    pub block_size: Option<BlockSize>,
}

/// Payload format, limits and times of a stream.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Format of the payloads.
    pub format: Codec,
    /// Addresses that connections may go to.
    pub destinations: Destinations,
    /// Longest accepted message, bytes.
    pub max_message: usize,
    /// Most live batches queued during a replay.
    pub queue_batches: usize,
    /// Time without a message after which a connected stream is stale.
    pub stale_after: Duration,
    /// Longest wait for a replay's connection and for its first message; after it the replay has
    /// failed. Each later message may take as long, but 2 s at most.
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
            resume: None,
        }
    }
}

/// Follows one publisher's ZMQ sockets.
#[derive(Debug)]
pub struct ZmqSource;

impl ZmqSource {
    /// Starts following the stream in a task of the current runtime; reconnects until stopped.
    pub fn spawn(spec: SourceSpec, index: Arc<KvIndex>, clock: Clock) -> SourceHandle {
        Self::spawn_into(spec, index, clock)
    }

    /// Like [`ZmqSource::spawn`], but sends the updates to `sink`, such as a [`crate::FanOut`].
    pub fn spawn_into(spec: SourceSpec, sink: Arc<dyn BlockSink>, clock: Clock) -> SourceHandle {
        let about = SourceInfo {
            kind: "zmq",
            worker: Arc::clone(&spec.worker),
            rank: spec.target.rank.0,
            endpoint: spec.endpoint.to_string(),
            replay_endpoint: spec.replay_endpoint.as_ref().map(Endpoint::to_string),
        };
        SourceHandle::start(about, clock, |status_sender, control| {
            ZmqFollower::new(spec, sink, clock, status_sender).run(control)
        })
    }
}
