//! From the bytes engines publish to [`kv_blocks::IndexUpdate`]s, in order.
//!
//! [`frames`] knows the message layouts, [`vllm`] the payloads, [`Sequencer`] what a lost, repeated or restarted
//! stream means. Nothing here opens a socket, reads a clock or keeps an index.
//!
//! **Invariant**: bytes from outside never panic, never recurse and never make this crate reserve more memory than
//! they themselves occupy; a bad event costs itself only.

pub mod frames;
mod sequencer;
pub mod vllm;

pub use sequencer::{Action, Counts, Input, Sequencer, SequencerSettings, StreamState};
