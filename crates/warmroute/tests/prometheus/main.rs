//! A real Prometheus scrapes `/metrics`: the known queries and alerts on prefix routing, response
//! cache and KV index give correct data, unchanged.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../prefix_stream/mod.rs"]
mod prefix_stream;
#[path = "../../../redis-store/tests/redis_server/mod.rs"]
mod redis_server;

mod alerts;
mod queries;
mod rules;
mod samples;
mod server;
mod traffic;
