//! From the bytes engines publish to [`kv_blocks::IndexUpdate`]s, in order.
//!
//! [`frames`] knows the message layouts, [`Sequencer`] what a lost, repeated or restarted stream means, and one module per
//! publisher its payloads: [`vllm`] (also SGLang, LMCache and whoever speaks like it), [`standard`] (RFC 1527, and the
//! Mooncake store's master), [`trtllm`] and [`continuum`]. Nothing here opens a socket, reads a clock or keeps an index.
//!
//! **Invariant**: bytes from outside never panic, never recurse and never make this crate reserve more memory than
//! they themselves occupy; a bad event costs itself only.

pub mod continuum;
mod errors;
pub mod frames;
mod json;
mod sequencer;
pub mod standard;
pub mod trtllm;
pub mod vllm;
mod wire;

pub use errors::{BatchError, EventError};
pub use sequencer::{
    Action, Codec, Input, Sequencer, SequencerCounts, SequencerSettings, StreamState,
};
