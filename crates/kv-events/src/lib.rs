//! Decodes and orders the event bytes of engines into [`kv_blocks::IndexUpdate`]s.
//!
//! [`frames`] defines the message layouts, [`Sequencer`] handles lost, repeated and restarted
//! streams, and one module per publisher decodes its payloads: [`vllm`] (also SGLang, LMCache and
//! compatible publishers), [`standard`] (RFC 1527, and the Mooncake store's master), [`trtllm`] and
//! [`continuum`]. Nothing here opens a socket, reads a clock or keeps an index.
//!
//! **Invariant**: bytes from outside never panic, never recurse and never make this crate reserve
//! more memory than they themselves occupy; a bad event affects no other event.

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
    AcceptedBatch, AcceptedRecord, Action, Codec, Continuation, ContinuationOutcome,
    EventKindCounts, Input, Sequencer, SequencerCounts, SequencerSettings, StreamState,
};
