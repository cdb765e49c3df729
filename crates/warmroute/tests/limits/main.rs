//! Limits that hold against any client or engine: counts, bytes, memory and time.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;

#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../faults/fleet.rs"]
mod fleet;

mod connections;
mod counts;
mod heads;
mod held_bytes;
mod large_reply;
mod leaving;
mod memory;
mod swapped_model;
mod throttled;
mod unfinished;
