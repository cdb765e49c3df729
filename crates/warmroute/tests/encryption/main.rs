//! Encryption towards workers and clients, and additional listeners.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]
#![allow(unreachable_pub, reason = "modules of a test")]

#[path = "../harness/mod.rs"]
mod harness;

mod certificates;
mod front;
mod listeners;
mod workers;
