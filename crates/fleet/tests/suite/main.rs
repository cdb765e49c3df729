//! Workers over real sockets: found, lost, found again.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

mod config;
mod events;
mod fake_engine;
mod identity;
mod lifecycle;
mod lost_cache;
mod requests;
mod salts;
mod setup;
mod sources;
mod tokenizers;
mod trust;
