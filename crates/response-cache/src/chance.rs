//! Randomness that spreads the actions of several routers over time.

use std::hash::{BuildHasher, RandomState};

/// Returns a number from 0 to 1.
pub(crate) fn chance() -> f64 {
    f64::from(u16::try_from(RandomState::new().hash_one(0_u8) & 0xffff).unwrap_or_default())
        / f64::from(u16::MAX)
}
