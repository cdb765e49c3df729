//! TensorRT-LLM's events: the list that `POST /kv_cache_events` returns once and discards, in JSON.
//!
//! [`decode`] reads a list; a [`TrtStream`] keeps the state between lists and converts events into
//! index updates. The push form of these events has vLLM's layout and is decoded there. Nothing
//! here polls.
//!
//! An event names no adapters and salts, so an engine whose events are read this way must use none.

mod counts;
mod event;
mod groups;
mod stream;

pub use counts::TrtCounts;
pub use event::{MAX_EVENTS, TrtBlock, TrtData, TrtEvent, decode};
pub use stream::{TrtAction, TrtStream};
