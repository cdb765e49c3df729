//! What the end-to-end tests share: the real program as child processes, a scripted engine, and a raw HTTP client.
//!
//! Everything binds to loopback on free ports and ends with the value that owns it.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test binary uses its own part of the harness"
)]

mod chat;
mod fleet_state;
mod lmcache_controller;
mod open_metrics;
mod program;
mod raw_http;
mod reply_bytes;
mod routed;
mod scripted_engine;
mod shape;
mod stopwatch;

pub use chat::{chat, events_of, long_chat, streamed, text_of};
pub use fleet_state::{Fault, Router, Sim};
pub use lmcache_controller::{LmcacheController, Manner, Question};
pub use open_metrics::{Page, Sample};
pub use program::{Finished, Program};
pub use raw_http::{RawClient, RawReply};
pub use reply_bytes::{Framing, chunk, chunked, json_reply, stream_head, stream_reply};
pub use routed::{Routed, Turn, says, words};
pub use scripted_engine::{Gate, Reply, ScriptedEngine, Seen};
pub use shape::assert_shape;
pub use stopwatch::{Stopwatch, eventually};
