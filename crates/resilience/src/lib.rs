//! Mechanisms for calls to services beside the request path.
//!
//! **Invariant**: nothing here does I/O, waits, reads the clock or draws random numbers: moments and
//! random numbers are arguments.

mod backoff;
mod breaker;
mod byte_budget;
mod outcomes;
mod singleflight;

pub use backoff::{Backoff, jittered};
pub use breaker::CircuitBreaker;
pub use byte_budget::{ByteBudget, BytePermit};
pub use outcomes::OutcomeCounters;
pub use singleflight::Singleflight;
