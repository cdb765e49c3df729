//! A router that goes on while everything around it changes: its configuration, its workers, its own process.

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
