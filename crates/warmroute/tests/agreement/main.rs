//! Compares `simulate` in virtual time with `warmroute serve` before simulated engines on the same
//! workload.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;

mod fleet;
mod hits;
mod times;
mod workload;
