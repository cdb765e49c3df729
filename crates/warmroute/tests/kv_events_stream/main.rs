//! `GET /v1/kv_events` of the running program: its events, its access rules, and that a reader's
//! index equals the router's.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod feeding;
mod following;
mod refusals;
mod shape;
mod slow_reader;
mod subscriber;
