//! `GET /v1/kv_events` of the running program: what is told, to whom, and that whoever reads along knows what the router
//! knows.

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
