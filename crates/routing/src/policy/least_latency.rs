//! `least_latency`: the target whose worker's first tokens came soonest lately.
//!
//! Lately is a mean over half a minute that forgets; streamed replies alone show it. A worker without one is tried
//! first, with one request at a time while others have one: whoever never answers must not get all there is. While
//! nobody has one, and between equal means, the fewest requests in flight. Weights do not count.
//!
//! Cost: the mean in milliseconds; 0 for a worker to be tried, and the highest of the others' for one that is being
//! tried. Terms: `in_flight`, `tried` (1 with a mean of its own).

use super::{CostUnit, Price, Rule, Scene, Terms};

#[derive(Debug, Default)]
pub(super) struct LeastLatency;

impl Rule for LeastLatency {
    fn unit(&self) -> CostUnit {
        CostUnit::Ms
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let slowest = scene
            .contenders
            .iter()
            .filter_map(|contender| contender.standing.first_token_ms)
            .fold(0.0, f64::max);
        scene
            .contenders
            .iter()
            .map(|contender| {
                let mean = contender.standing.first_token_ms;
                let in_flight = contender.standing.load.in_flight;
                let untried = if in_flight == 0 { 0.0 } else { slowest };
                Price {
                    tie: u64::from(in_flight),
                    terms: Terms::new(
                        &["in_flight", "tried"],
                        [f64::from(in_flight), f64::from(u8::from(mean.is_some()))],
                    ),
                    ..Price::of(mean.unwrap_or(untried))
                }
            })
            .collect()
    }
}
