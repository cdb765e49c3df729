//! `prefix_hash`: equal prompt beginnings to one target, until it is full (consistent hashing with bounded loads).
//!
//! The target that owns the prefix key on the ring takes the request while it stays within the cap; after it the next
//! one clockwise that does. Weights do not count. Without a prefix key another policy decides.
//!
//! The cap is `ceil((1 + epsilon) * (all + 1) / targets)` requests in flight, this one among them; `all` are those in
//! flight on the targets that may take this request. `1 + epsilon` is rounded to the nearest millionth, half up, and the
//! rest is whole numbers: a product of fractions that is a whole number up to its last bit would be rounded up to the
//! next.
//!
//! Cost: 0 for the target that takes it, 1 for the others, fewest in flight first. Terms: `in_flight`, `cap`, `owner` (1
//! for the owner of the key).
//!
//! **Invariant**: no target is given more than the cap: not all can be full, or together they held more than there is.

use std::iter;

use kv_blocks::WorkerId;

use super::{CostUnit, Price, Rule, Scene, Terms, ring::Rings};
use crate::RingSettings;

/// Placed on the key's owner, and on another because the owner was full.
const OWNER: &str = "prefix_hash";
const OVERFLOW: &str = "overflow";

#[derive(Debug)]
pub(super) struct PrefixHash {
    rings: Rings,
    load_factor: LoadFactor,
}

impl PrefixHash {
    pub(super) fn new(settings: RingSettings) -> Self {
        Self {
            rings: Rings::new(settings.virtual_nodes, settings.seed),
            load_factor: LoadFactor::above_even(settings.load_factor_epsilon),
        }
    }
}

impl Rule for PrefixHash {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let in_flight = |i: usize| scene.contenders[i].standing.load.in_flight;
        let all = (0..scene.contenders.len()).map(|i| u64::from(in_flight(i))).sum();
        let cap = self.load_factor.cap(all, scene.contenders.len());
        let ring = self.rings.around(&scene.contenders);
        // `Policy::ruling` lets nobody in without a key; a lot is drawn rather than one target flooded.
        let mut walk = ring.clockwise(scene.affinity.prefix().unwrap_or(scene.random));
        let owner = walk.next().unwrap_or(0);
        let taker = iter::once(owner).chain(walk).find(|i| u64::from(in_flight(*i)) < cap).unwrap_or(owner);
        let label = if taker == owner { OWNER } else { OVERFLOW };
        let price = |i: usize| Price {
            tie: u64::from(in_flight(i)),
            label: Some(label),
            terms: Terms::new(
                &["in_flight", "cap", "owner"],
                [f64::from(in_flight(i)), cap as f64, f64::from(u8::from(i == owner))],
            ),
            ..Price::of(f64::from(u8::from(i != taker)))
        };
        (0..scene.contenders.len()).map(price).collect()
    }

    fn forget(&mut self, worker: WorkerId) {
        self.rings.forget(worker);
    }
}

/// How many times its even share of the load a target may have, in millionths.
#[derive(Clone, Copy, Debug)]
struct LoadFactor(u64);

const MILLION: u64 = 1_000_000;

impl LoadFactor {
    /// `1 + epsilon`. What is no number, or below 0, is 0: even shares.
    fn above_even(epsilon: f64) -> Self {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what fits")]
        let epsilon = (epsilon * MILLION as f64).round().clamp(0.0, 1e15) as u64;
        Self(MILLION + epsilon)
    }

    /// What a target may have in flight, a new request among it, when `in_flight` are on all `targets` without it.
    fn cap(self, in_flight: u64, targets: usize) -> u64 {
        let share = u128::from(self.0) * (u128::from(in_flight) + 1);
        u64::try_from(share.div_ceil(u128::from(MILLION) * targets.max(1) as u128)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CK17")]
    fn the_cap_is_counted_in_millionths_and_suffers_from_no_last_bit() {
        let cap = |epsilon, in_flight, targets| LoadFactor::above_even(epsilon).cap(in_flight, targets);
        // In floating point 1.1 * 50 is a little above 55, and its fifth rounds up to 12.
        assert_eq!(((1.0f64 + 0.1) * 50.0 / 5.0).ceil(), 12.0);
        assert_eq!((cap(0.1, 49, 5), cap(0.1, 49, 11), cap(0.15, 99, 1)), (11, 5, 115));
        assert_eq!((cap(0.25, 499, 4), cap(0.25, 0, 4), cap(0.25, 3, 4), cap(0.25, 4, 4)), (157, 1, 2, 2));
        // Rounded to the nearest millionth, half up.
        assert_eq!((cap(0.000_000_4, 999_999, 1), cap(0.000_000_5, 999_999, 1)), (1_000_000, 1_000_001));
        assert_eq!((cap(f64::NAN, 9, 10), cap(-3.0, 9, 10), cap(0.0, 10, 10)), (1, 1, 2));
        assert!(cap(f64::INFINITY, u64::MAX, 1) >= u64::from(u32::MAX));
    }
}
