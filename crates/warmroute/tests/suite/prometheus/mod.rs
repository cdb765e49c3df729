//! What a real Prometheus makes of `/metrics`: the queries and alerts that operators of prefix routing, response cache and
//! KV index know give true data, unchanged.

mod alerts;
mod queries;
mod rules;
mod samples;
mod server;
mod traffic;
