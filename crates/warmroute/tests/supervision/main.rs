//! A router whose tasks panic, whose log nobody reads, and whose process stands still.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod leases;
mod logging;
mod panics;
