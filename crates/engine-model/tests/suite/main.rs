//! The integration tests of the crate, linked once, as one program.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic, too")]

mod support;

mod fetch;
mod prefix_cache;
mod reserved;
mod scheduling;
