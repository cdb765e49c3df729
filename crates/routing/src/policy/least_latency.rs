//! `least_latency`: the target whose worker had the shortest recent time to first token.
//!
//! The recent time is a decaying mean over half a minute; only streamed replies provide it. A
//! worker without a mean is tried first, with one request at a time while others have one: a worker
//! that never answers must not get all requests. While no worker has a mean, and between equal
//! means, the fewest requests in flight win. Weights do not count.
//!
//! Cost: the mean in milliseconds; 0 for a worker to be tried, and the highest mean of the others
//! for one that is being tried. Terms: `in_flight`, `tried` (1 with a mean of its own).

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("least_latency"),
    facts: &[PolicyFact::FirstTokenTime],
    rule: |_| Box::new(LeastLatency),
};

#[derive(Debug, Default)]
pub(super) struct LeastLatency;

impl PolicyRule for LeastLatency {
    fn unit(&self) -> CostUnit {
        CostUnit::Ms
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let slowest = input
            .candidates
            .iter()
            .filter_map(|contender| contender.state.first_token_ms)
            .fold(0.0, f64::max);
        input
            .candidates
            .iter()
            .map(|contender| {
                let mean = contender.state.first_token_ms;
                let in_flight = contender.state.load.in_flight;
                let untried = if in_flight == 0 { 0.0 } else { slowest };
                CandidateCost {
                    tie: u64::from(in_flight),
                    terms: Terms::new(
                        &["in_flight", "tried"],
                        [f64::from(in_flight), f64::from(u8::from(mean.is_some()))],
                    ),
                    ..CandidateCost::of(mean.unwrap_or(untried))
                }
            })
            .collect()
    }
}
