//! `least_loaded`: the target with the fewest requests in flight; of equals the one whose latest request is oldest.
//!
//! Requests in flight are counted when they are decided, so a burst spreads evenly. Cost: requests in flight. Terms:
//! `in_flight`.

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
                Price {
                    tie: standing.last_dispatch,
                    terms: Terms::new(&["in_flight"], [in_flight]),
                    ..Price::of(in_flight)
                }
            })
            .collect()
    }
}
