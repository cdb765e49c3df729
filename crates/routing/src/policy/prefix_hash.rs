//! `prefix_hash`: sends equal prompt beginnings to one target until it is full (consistent hashing
//! with bounded loads).
//!
//! The owner of the prefix key on the ring takes the request while it stays within the cap;
//! otherwise the next target clockwise that does. Weights do not count. Without a prefix key
//! another policy decides.
//!
//! The cap is `ceil((1 + epsilon) * (all + 1) / targets)` requests in flight, this one included;
//! `all` are the requests in flight on the targets that may take this request. `1 + epsilon` is
//! rounded to the nearest millionth, half up, and the rest is integer arithmetic: a floating-point
//! product just above a whole number would be rounded up to the next.
//!
//! Cost: 0 for the chosen target, 1 for the others, fewest in flight first. Terms: `in_flight`,
//! `cap`, `owner` (1 for the owner of the key).
//!
//! **Invariant**: no target gets more than the cap: not all can be full, as together they would
//! exceed the total.

use std::iter;

use kv_blocks::WorkerId;
use settings::word_or;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    load_factor::LoadFactor,
    ring::RingCache,
    rule::{PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::RingSettings;

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word_or("prefix_hash", &["prefix_aware_hash"]),
    facts: &[PolicyFact::Affinity],
    rule: |settings| Box::new(PrefixHash::new(settings.ring())),
};

/// The labels of requests routed to the key's owner, and on another target because the owner was
/// full.
const OWNER: &str = "prefix_hash";
const OVERFLOW: &str = "overflow";

#[derive(Debug)]
pub(super) struct PrefixHash {
    rings: RingCache,
    load_factor: LoadFactor,
}

impl PrefixHash {
    pub(super) fn new(settings: RingSettings) -> Self {
        Self {
            rings: RingCache::new(settings.virtual_nodes, settings.seed),
            load_factor: LoadFactor::above_even(settings.load_factor_epsilon),
        }
    }
}

impl PolicyRule for PrefixHash {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn decides(&self, input: &PolicyInput<'_>) -> bool {
        input.affinity.prefix_key.is_some()
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let in_flight = |i: usize| input.candidates[i].state.load.in_flight;
        let all = (0..input.candidates.len())
            .map(|i| u64::from(in_flight(i)))
            .sum();
        let cap = self.load_factor.cap(all, input.candidates.len());
        let ring = self.rings.around(&input.candidates);
        // Another policy decides for requests without a key; a random target avoids flooding one
        // target.
        let mut walk = ring.clockwise(input.affinity.prefix().unwrap_or(input.random));
        let owner = walk.next().unwrap_or(0);
        let taker = iter::once(owner)
            .chain(walk)
            .find(|i| u64::from(in_flight(*i)) < cap)
            .unwrap_or(owner);
        let label = if taker == owner { OWNER } else { OVERFLOW };
        let price = |i: usize| CandidateCost {
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
            ..CandidateCost::of(f64::from(u8::from(i != taker)))
        };
        (0..input.candidates.len()).map(price).collect()
    }

    fn forget(&mut self, worker: WorkerId) {
        self.rings.forget(worker);
    }
}
