//! Randomness that spreads the actions of several processes over time.

use std::hash::{BuildHasher, RandomState};

/// Returns a number from 0 to 1 that differs between processes and between calls.
pub fn chance() -> f64 {
    // The standard library's hash keys serve as the random source.
    let number = RandomState::new().hash_one(0_u8);
    f64::from((number >> 32) as u32) / f64::from(u32::MAX)
}
