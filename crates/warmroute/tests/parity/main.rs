//! Predicted cached tokens are compared with the engine's, reported, and acted on.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod figures;
mod fitness;
mod lost_events;
mod lying_proxy;
mod trust;
mod without_usage;
