//! A router with panicking tasks, an unread log, and a paused process.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod leases;
mod logging;
mod panics;
