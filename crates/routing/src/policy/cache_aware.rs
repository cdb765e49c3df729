//! `cache_aware`: the target with the longest cached prefix where enough of the prompt is cached and the load is even,
//! else the one with the fewest requests in flight.
//!
//! The rule of routers that keep an approximate tree of prompts per worker, on what the index knows instead. Of equal
//! matches the fewest in flight. Weights do not count, and at overlap weight 0 neither does the cache. Where too little is
//! cached and load is even, a target that is remembered to have served such a prompt goes before the others.
//!
//! Cost: 1 less the cached share of the prompt while the cache decides, 1 for all while the load does, 0 for the target
//! that is remembered. Terms: `cached_share`, `in_flight`, `uneven` (1 while the load is too uneven for the cache to
//! decide), `remembered` (1 for that target).

use super::{Contender, CostUnit, Price, Rule, Scene, Terms, remembered::Remembered};
use crate::{CacheAwareSettings, RingSettings};

#[derive(Debug)]
pub(super) struct CacheAware {
    settings: CacheAwareSettings,
    remembered: Remembered,
}

impl CacheAware {
    pub(super) fn new(settings: CacheAwareSettings, ring: RingSettings) -> Self {
        Self {
            settings,
            remembered: Remembered::new(ring),
        }
    }

    fn uneven(&self, scene: &Scene<'_>) -> bool {
        let loads = || {
            scene
                .contenders
                .iter()
                .map(|contender| contender.standing.load.in_flight)
        };
        let (least, most) = (loads().min().unwrap_or(0), loads().max().unwrap_or(0));
        most - least > self.settings.balance_difference
            && f64::from(most) > self.settings.balance_ratio * f64::from(least)
    }
}

impl Rule for CacheAware {
    fn unit(&self) -> CostUnit {
        CostUnit::Score
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let share = |contender: &Contender<'_>| {
            f64::from(contender.surveyed.warm.total()) / f64::from(scene.prompt_tokens.max(1))
        };
        let uneven = self.uneven(scene);
        let matched = scene.contenders.iter().map(share).fold(0.0, f64::max);
        let by_cache =
            !uneven && scene.overlap_weight > 0.0 && matched > self.settings.match_threshold;
        let remembered = if by_cache || uneven {
            None
        } else {
            self.remembered.preferred(scene)
        };
        scene
            .contenders
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
                let in_flight = contender.standing.load.in_flight;
                Price {
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
                    ..Price::of(cost)
                }
            })
            .collect()
    }
}
