//! `cache_aware`: the target with the longest cached prefix if enough of the prompt is cached and
//! the load is even, else the one with the fewest requests in flight.
//!
//! This is the rule of routers that keep an approximate prompt tree per worker, applied to the
//! overlaps from the index. Of equal matches the target with the fewest requests in flight wins.
//! Weights do not count, and at overlap weight 0 the cache does not either. Where too little is
//! cached and load is even, a target that the prefix memory names is preferred.
//!
//! Cost: 1 less the cached share of the prompt while the cache decides, 1 for all while the load
//! does, 0 for the target from the prefix memory. Terms: `cached_share`, `in_flight`, `uneven` (1
//! while the load is too uneven for the cache to decide), `remembered` (1 for the target from the
//! prefix memory).

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    prefix_memory_hint::PrefixMemoryHint,
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::{CacheAwareSettings, RingSettings};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("cache_aware"),
    facts: &[PolicyFact::BlockOverlap],
    rule: |settings| Box::new(CacheAware::new(settings.cache_aware, settings.ring())),
};

#[derive(Debug)]
pub(super) struct CacheAware {
    settings: CacheAwareSettings,
    remembered: PrefixMemoryHint,
}

impl CacheAware {
    pub(super) fn new(settings: CacheAwareSettings, ring: RingSettings) -> Self {
        Self {
            settings,
            remembered: PrefixMemoryHint::new(ring),
        }
    }

    fn uneven(&self, input: &PolicyInput<'_>) -> bool {
        let loads = || {
            input
                .candidates
                .iter()
                .map(|contender| contender.state.load.in_flight)
        };
        let (least, most) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        most - least > self.settings.balance_difference
            && f64::from(most) > self.settings.balance_ratio * f64::from(least)
    }
}

impl PolicyRule for CacheAware {
    fn unit(&self) -> CostUnit {
        CostUnit::Score
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let share = |contender: &PolicyCandidate<'_>| {
            f64::from(contender.overlap.warm.total()) / f64::from(input.prompt_tokens.max(1))
        };
        let uneven = self.uneven(input);
        let matched = input.candidates.iter().map(share).fold(0.0, f64::max);
        let by_cache =
            !uneven && input.overlap_weight > 0.0 && matched > self.settings.match_threshold;
        let remembered = if by_cache || uneven {
            None
        } else {
            self.remembered.preferred(input)
        };
        input
            .candidates
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let hinted = remembered == Some(i);
                let flag = |set: bool| f64::from(u8::from(set));
                let cost = match (hinted, by_cache) {
                    (true, _) => 0.0,
                    (false, true) => 1.0 - share(contender),
                    (false, false) => 1.0,
                };
                let in_flight = contender.state.load.in_flight;
                CandidateCost {
                    tie: u64::from(in_flight),
                    terms: Terms::new(
                        &["cached_share", "in_flight", "uneven", "remembered"],
                        [
                            share(contender),
                            f64::from(in_flight),
                            flag(uneven),
                            flag(hinted),
                        ],
                    ),
                    ..CandidateCost::of(cost)
                }
            })
            .collect()
    }
}
