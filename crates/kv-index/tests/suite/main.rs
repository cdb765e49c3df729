//! The integration tests of the crate, linked once, as one program.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

#[path = "../oracle/mod.rs"]
mod oracle;
mod sequence;
mod stream;

mod against_a_model;
mod against_the_oracle;
mod budget;
mod by_hash;
mod chunk_order;
mod chunks;
mod collisions;
mod copies;
mod expecting;
mod export;
mod following;
mod holding;
mod named;
mod native;
mod real_captures;
mod restoring;
mod retiring;
mod saving_in_pieces;
mod snapshot;
mod streams;
mod trust;
