//! A real Prometheus scrapes `/metrics`: the known queries and alerts on prefix routing, response
//! cache and KV index give correct data, unchanged, and the shipped dashboards ask for what is there.

mod alerts;
#[cfg(feature = "otel")]
mod dashboards;
mod queries;
mod rules;
mod samples;
mod server;
mod traffic;
