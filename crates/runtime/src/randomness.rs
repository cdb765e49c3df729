//! Random numbers, from the system or from a simulation's seed.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::simulation;

/// Returns a random number. Good for identifiers, hash secrets and jitter; not for keys.
pub fn random() -> u64 {
    simulation::next_random().unwrap_or_else(|| RandomState::new().build_hasher().finish())
}

/// Returns a random number from 0 to 1.
pub fn chance() -> f64 {
    let bits = u32::try_from(random() >> 32).unwrap_or_default();
    f64::from(bits) / f64::from(u32::MAX)
}
