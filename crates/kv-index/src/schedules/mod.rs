//! Lookups beside the writer: as the machine schedules them, and as checkers of schedules do (`check-concurrency`).

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

#[cfg(loom)]
mod exhaustive;
#[cfg(any(loom, shuttle))]
pub(crate) mod lock;
#[cfg(not(loom))]
#[path = "../../tests/oracle/random.rs"]
mod random;
#[cfg(shuttle)]
mod random;
#[cfg(not(any(loom, shuttle)))]
mod real;
#[cfg(not(loom))]
mod scenario;
#[cfg(loom)]
pub(crate) mod weakening;
