//! TensorRT-LLM's events: the list that `POST /kv_cache_events` gives out once and forgets, in JSON.
//!
//! [`decode`] reads a list, a [`TrtStream`] knows what came before and says what it means for an index. Its push form is
//! shaped like vLLM's and read there. Nothing here polls.
//!
//! An event says nothing of adapters and salts, so none may be in use on an engine whose events are read this way.

mod counts;
mod event;
mod groups;
mod stream;

pub use counts::TrtCounts;
pub use event::{MAX_EVENTS, TrtBlock, TrtData, TrtEvent, decode};
pub use stream::{TrtAction, TrtStream};
