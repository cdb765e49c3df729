//! A real Prometheus scrapes `/metrics`: the known queries and alerts on prefix routing, response
//! cache and KV index give correct data, unchanged.

mod alerts;
mod queries;
mod rules;
mod samples;
mod server;
mod traffic;
