//! Sockets that carry KV events: they read, the sequencer decides, the index is told.
//!
//! One [`ZmqSource`] task per stream reads a SUB socket, fetches history over a DEALER, feeds `kv_events::Sequencer`
//! and carries out what it answers on the [`kv_index::KvIndex`].
//!
//! Not here: what bytes mean (`kv-events`), which streams exist and where (`fleet`).
//!
//! **Invariant**: a stream can fill, empty or stop filling its own target's part of the index and nothing else; every
//! buffer between socket and index is bounded; the socket is always drained, so no publisher waits for us.

mod follower;
mod quarantine;
mod replay;
mod report;
mod status;
mod zmq_source;

pub use kv_events::StreamState;
pub use report::{IgnoredCounts, SourceCounters, StreamCounts, StreamReport};
pub use zmq_source::{SourceHandle, SourceSettings, SourceSpec, ZmqSource};
pub use zmtp::{Endpoint, EndpointError};
