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

use super::{CostUnit, Price, Rule, Scene, Terms, load_factor::LoadFactor, ring::Rings};
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
        let all = (0..scene.contenders.len())
            .map(|i| u64::from(in_flight(i)))
            .sum();
        let cap = self.load_factor.cap(all, scene.contenders.len());
        let ring = self.rings.around(&scene.contenders);
        // `Policy::ruling` lets nobody in without a key; a lot is drawn rather than one target flooded.
        let mut walk = ring.clockwise(scene.affinity.prefix().unwrap_or(scene.random));
        let owner = walk.next().unwrap_or(0);
        let taker = iter::once(owner)
            .chain(walk)
            .find(|i| u64::from(in_flight(*i)) < cap)
            .unwrap_or(owner);
        let label = if taker == owner { OWNER } else { OVERFLOW };
        let price = |i: usize| Price {
            tie: u64::from(in_flight(i)),
            label: Some(label),
            terms: Terms::new(
                &["in_flight", "cap", "owner"],
                [
                    f64::from(in_flight(i)),
                    cap as f64,
                    f64::from(u8::from(i == owner)),
                ],
            ),
            ..Price::of(f64::from(u8::from(i != taker)))
        };
        (0..scene.contenders.len()).map(price).collect()
    }

    fn forget(&mut self, worker: WorkerId) {
        self.rings.forget(worker);
    }
}
