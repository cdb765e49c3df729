//! Mechanisms for calls to services beside the request path.
//!
//! **Invariant**: nothing here does I/O or reads the clock.

mod outcomes;

pub use outcomes::OutcomeCounters;
