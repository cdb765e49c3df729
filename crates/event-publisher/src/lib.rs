//! A publisher of KV events for authors of engines: it publishes in vLLM's form which blocks an
//! engine holds, so that a router follows its cache.
//!
//! The Python class `EventPublisher` and the C library are conversions around [`EventPublisher`].
//! The messages are vLLM's: a PUB socket with numbered batches, and a ROUTER socket that sends past
//! batches again to a reader that missed some. One event is one batch.
//!
//! **Invariant**: an event that a reader would ignore is not published: [`StoredBlocks`] is checked
//! before it becomes a batch.

mod errors;
mod options;
mod publisher;
mod stored_blocks;

pub use errors::{ArgumentError, CreateError, PublishError};
pub use kv_blocks::{BlockSize, DpRank};
pub use kv_events::vllm::WireHash;
pub use options::{LONGEST_NAME, PublisherOptions, checked_name};
pub use publisher::EventPublisher;
pub use stored_blocks::StoredBlocks;

/// Most tokens, and most hashes, of one call: four times a context of a million. A caller checks it
/// before it copies them.
pub const MOST_TOKENS: usize = 1 << 22;
