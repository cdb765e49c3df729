//! Concurrency tests of lookups beside the writer: with the machine's own schedules, and with those
//! of checkers (`check-concurrency`).

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

#[cfg(loom)]
mod exhaustive;
#[cfg(any(loom, shuttle))]
pub(crate) mod lock;
#[cfg(shuttle)]
mod random;
#[cfg(not(any(loom, shuttle)))]
mod real;
#[cfg(not(loom))]
mod scenario;
#[cfg(not(loom))]
#[path = "../../tests/oracle/random.rs"]
mod split_mix;
#[cfg(loom)]
pub(crate) mod weakening;
