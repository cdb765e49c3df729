//! Shared parts of the end-to-end tests: the real program as child processes, a scripted engine,
//! and a raw HTTP client.
//!
//! Everything binds to loopback on free ports and ends with its owner.
#![allow(unreachable_pub, reason = "a module of test programs")]

mod chat;
mod connect_hook;
mod fleet_state;
mod known_secrets;
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
pub use connect_hook::ConnectHook;
pub use fleet_state::{RouterQueries, SimControls};
pub use lmcache_controller::{ControllerBehavior, LmcacheController};
pub use open_metrics::Page;
pub use program::{FinishedProgram, Program};
pub use raw_http::{RawClient, RawReply};
pub use reply_bytes::{Framing, chunk, chunked, json_reply, stream_head, stream_reply};
pub use routed::{RoutedFleet, RoutedReply, chat_message, words};
pub use scripted_engine::{PieceGate, ScriptedEngine, ScriptedReply, SeenRequest};
pub use shape::assert_shape;
pub use stopwatch::{LONGEST_WAIT, Stopwatch, eventually};
