//! The integration tests of the crate, linked once, as one program.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may panic, too")]

mod support;

mod apis;
mod events;
mod faults;
mod media;
mod native;
mod peers;
mod replies;
mod switches;
mod tools;
mod transfer;
