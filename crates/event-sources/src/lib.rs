//! Event sources: sockets that read KV events, and tasks that apply them to the index.
//!
//! | source | reads | from |
//! |---|---|---|
//! | [`ZmqSource::spawn`] | a SUB socket, and history over a DEALER | one publisher: vLLM and compatible engines, a store's master |
//! | [`SharedSocket`], [`ZmqSource::spawn_shared`] | a bound SUB socket | many publishers, distinguished by topic and rank |
//! | [`SseSource`] | server-sent events or a WebSocket, encrypted or not | publishers of whole prefixes ([`PrefixSink`]) or of RFC 1527 events ([`StandardSink`]) |
//! | [`PollSource`] | a list, polled | TensorRT-LLM |
//! | `NatsSource` (Cargo feature `nats`) | a NATS subject | one publisher, whose ZMQ sockets a `NatsRelay` forwards there |
//! | `SharedLogSource` (the same feature) | the ZMQ sockets of one publisher, or the log on JetStream that the routers of a fleet share | the same publisher; it publishes to the log, too |
//!
//! Each source is a task that ends with its [`SourceHandle`] and reports its state in a
//! [`StreamReport`]. ZMQ and NATS streams go through `kv_events::Sequencer`, whose actions are
//! carried out on the [`kv_index::KvIndex`] or another [`BlockSink`].
//!
//! Not here: the meaning of the bytes (`kv-events`), and the list of streams and their addresses
//! (`fleet`).
//!
//! **Invariant**: a stream can fill, empty or stop filling its own target's part of the index and
//! nothing else; every buffer between socket and index is bounded; the socket is always drained, so
//! no publisher waits for the router.

mod envelopes;
mod follower;
mod handle;
#[cfg(feature = "nats")]
mod nats;
mod poll;
mod quarantine;
mod replay;
mod replaying_driver;
mod report;
mod shared;
#[cfg(feature = "nats")]
mod shared_log;
mod sink;
mod sse;
mod status;
mod stream_driver;
mod tier_moves;
mod zmq_source;

pub use api::{StreamCounts, StreamReport};
pub use envelopes::{EnvelopeOutcome, EnvelopeSink, StandardSinkSpec};
pub use handle::SourceHandle;
pub use kv_events::{Codec, StreamState};
#[cfg(feature = "nats")]
pub use nats::{
    NatsCredentials, NatsCredentialsError, NatsEndpoint, NatsEndpointError, NatsRelay, NatsServer,
    NatsServerError, NatsSource, NatsSpec, NatsSubject, RelayCounts, RelayError, RelayNotice,
    RelaySpec,
};
pub use poll::{PollSource, PollSpec};
pub use report::{IgnoredCounts, SourceCounters, reduce_error};
pub use shared::{
    PodTopic, PublisherInfo, PublisherLookup, SharedSocket, SharedSpec, SocketMember,
};
#[cfg(feature = "nats")]
pub use shared_log::SharedLogSource;
pub use sink::{BlockSink, FanOut};
pub use sse::{
    EventSink, EventTransport, PrefixSink, SinkCounts, SseEndpoint, SseEndpointError, SseSource,
    SseSpec, StandardSink, StreamMessage,
};
pub use tier_moves::TierMoves;
pub use zmq_source::{EventDefaults, SourceSettings, SourceSpec, ZmqSource};
pub use zmtp::{Endpoint, EndpointError, PeerFilter};
