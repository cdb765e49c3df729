//! The integration tests of the crate, linked once, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod indexer_fixture;

mod bad_calls;
mod documented_samples;
mod envelopes;
mod media;
mod msgpack_calls;
mod polled_engine;
mod publishers;
mod stores;
