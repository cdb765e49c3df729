//! `GET /v1/kv_events` of the running program: its events, its access rules, and that a reader's
//! index equals the router's.

mod feeding;
mod following;
mod keyed_hashes;
mod refusals;
mod shape;
mod slow_reader;
mod subscriber;
