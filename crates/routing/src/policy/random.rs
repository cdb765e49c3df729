//! `random`: any target, with a probability in proportion to its weight.
//!
//! Cost: the rank in a random order: of the targets that have no rank yet, each one is next with a
//! probability of its `workers[].weight` over the sum of their weights. Terms: none.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, by_rank, random_for, unit},
    rule::{PolicyDefinition, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("random"),
    facts: &[],
    rule: |_| Box::new(Random),
};

#[derive(Debug, Default)]
pub(super) struct Random;

impl PolicyRule for Random {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        // Each candidate gets an exponentially distributed time with its weight as rate: the order
        // of the times is then by weight.
        let mut ranking: Vec<(f64, u64, usize)> = input
            .candidates
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let random = random_for(input.random, i);
                (
                    -(-unit(random)).ln_1p() / contender.overlap.candidate.share(),
                    random,
                    i,
                )
            })
            .collect();
        ranking.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        by_rank(ranking.into_iter().map(|(_, _, i)| i))
    }
}
