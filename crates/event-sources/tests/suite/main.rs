//! The integration tests of the crate, linked once, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../engine/mod.rs"]
mod engine;
#[cfg(feature = "nats")]
#[path = "../../../nats-client/tests/nats_server/mod.rs"]
mod nats_server;
mod recording;
#[cfg(feature = "nats")]
mod relayed;
mod residency;
mod stream_server;

mod encrypted;
mod hostile_publisher;
mod libzmq_replay;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "nats")]
mod nats_creds;
#[cfg(feature = "nats")]
mod nats_hostile;
mod overflowing_replay;
mod polled_list;
mod reconnects;
mod recorded_sessions;
mod shared_log;
mod shared_socket;
mod slow_sink;
mod sse_stream;
mod standard_stream;
mod storm_sockets;
mod web_socket;
mod zmq_stream;
