//! Sockets that carry KV events: they read, a pure part decides, the index is told.
//!
//! | source | reads | from |
//! |---|---|---|
//! | [`ZmqSource::spawn`] | a SUB socket, and history over a DEALER | one publisher: vLLM and those like it, a store's master |
//! | [`SharedSocket`], [`ZmqSource::spawn_shared`] | a bound SUB socket | many publishers, told apart by topic and rank |
//! | [`SseSource`] | server-sent events or a WebSocket, encrypted or not | whoever names whole prefixes ([`PrefixSink`]) or speaks RFC 1527 ([`StandardSink`]) |
//! | [`PollSource`] | a list, asked for again and again | TensorRT-LLM |
//! | `NatsSource` (Cargo feature `nats`) | a NATS subject | one publisher, whose ZMQ sockets a `Relay` puts there |
//!
//! Each is a task that ends with its [`SourceHandle`] and shows itself in a [`StreamReport`]. ZMQ and NATS streams go
//! through `kv_events::Sequencer`, whose answers are carried out on the [`kv_index::KvIndex`] or another [`BlockSink`].
//!
//! Not here: what bytes mean (`kv-events`), which streams exist and where (`fleet`).
//!
//! **Invariant**: a stream can fill, empty or stop filling its own target's part of the index and nothing else; every
//! buffer between socket and index is bounded; the socket is always drained, so no publisher waits for us.

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
mod sink;
mod sse;
mod status;
mod stream_driver;
mod zmq_source;

pub use handle::SourceHandle;
pub use kv_events::{Codec, StreamState};
#[cfg(feature = "nats")]
pub use nats::{
    NatsCredentials, NatsCredentialsError, NatsEndpoint, NatsEndpointError, NatsRelay, NatsServer,
    NatsSource, NatsSpec, NatsSubject, RelayCounts, RelayError, RelayNotice, RelaySpec,
};
pub use poll::{PollSource, PollSpec};
pub use report::{IgnoredCounts, SourceCounters, StreamCounts, StreamReport};
pub use shared::{
    PodTopic, PublisherInfo, PublisherLookup, SharedSocket, SharedSpec, SocketMember,
};
pub use sink::{BlockSink, FanOut};
pub use sse::{
    EventSink, EventTransport, PrefixSink, SinkCounts, SseEndpoint, SseEndpointError, SseSource,
    SseSpec, StandardSink, StandardSinkSpec, StreamMessage,
};
pub use zmq_source::{EventDefaults, SourceSettings, SourceSpec, ZmqSource};
pub use zmtp::{Endpoint, EndpointError};
