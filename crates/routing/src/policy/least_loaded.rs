//! `least_loaded`: the target with the fewest requests in flight for its weight; of equals the one
//! with the oldest latest request.
//!
//! Requests in flight are counted at the decision, so a burst spreads evenly. Cost: requests in
//! flight over `workers[].weight`, so that a target of weight 2 gets twice as many; idle targets
//! are equal whatever their weight. Terms: `in_flight`, `weight`.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyDefinition, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("least_loaded"),
    facts: &[],
    rule: |_| Box::new(LeastLoaded),
};

#[derive(Debug, Default)]
pub(super) struct LeastLoaded;

impl PolicyRule for LeastLoaded {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        input
            .candidates
            .iter()
            .map(|contender| {
                let state = &contender.state;
                let in_flight = f64::from(state.load.in_flight);
                let weight = contender.overlap.candidate.share();
                CandidateCost {
                    tie: state.last_dispatch,
                    terms: Terms::new(&["in_flight", "weight"], [in_flight, weight]),
                    ..CandidateCost::of(in_flight / weight)
                }
            })
            .collect()
    }
}
