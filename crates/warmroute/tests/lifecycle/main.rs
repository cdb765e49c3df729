//! A router that keeps serving while its configuration, its workers and its own process change.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod configured;
mod discovery;
mod load;
mod members;
mod reload;
mod rolling;
mod takeover;
