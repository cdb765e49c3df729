//! The integration tests of the crate, linked once, as one program.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

#[path = "../../../kv-index/tests/oracle/random.rs"]
mod random;

mod continuation;
mod continuum;
mod envelope_batches;
mod envelope_scope;
mod fixtures;
mod hostile_bytes;
mod hostile_publishers;
mod lmcache;
mod lossy_replay;
mod normalising;
mod real_captures;
mod resuming;
mod resync;
mod sequencing;
mod standard_events;
mod standard_meaning;
mod standard_streams;
mod store_batches;
mod storm;
mod trtllm;
mod unreliable_stream;
