//! `least_loaded`: the target with the fewest requests in flight for its weight; of equals the one whose latest request
//! is oldest.
//!
//! Requests in flight are counted when they are decided, so a burst spreads evenly. Cost: requests in flight over
//! `workers[].weight`, so that one of weight 2 holds twice as many; idle ones are equal whatever their weight. Terms:
//! `in_flight`, `weight`.

use super::{CostUnit, Price, Rule, Scene, Terms};

#[derive(Debug, Default)]
pub(super) struct LeastLoaded;

impl Rule for LeastLoaded {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        scene
            .contenders
            .iter()
            .map(|contender| {
                let standing = &contender.standing;
                let in_flight = f64::from(standing.load.in_flight);
                let weight = contender.surveyed.candidate.share();
                Price {
                    tie: standing.last_dispatch,
                    terms: Terms::new(&["in_flight", "weight"], [in_flight, weight]),
                    ..Price::of(in_flight / weight)
                }
            })
            .collect()
    }
}
