//! `power_of_two`: the one of two random targets with fewer requests in flight.
//!
//! Two samples are enough to keep a herd from one target, and unlike `least_loaded`, several
//! routers without knowledge of each other's load do not all choose the same one. Of equals the one
//! picked first wins. Weights do not count.
//!
//! Cost: 0 for the winner, 1 for the other sample, 2 for the rest. Terms: `in_flight`.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms, random_for},
    rule::{PolicyDefinition, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("power_of_two"),
    facts: &[],
    rule: |_| Box::new(PowerOfTwo),
};

#[derive(Debug, Default)]
pub(super) struct PowerOfTwo;

impl PolicyRule for PowerOfTwo {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let in_flight = |i: usize| input.candidates[i].state.load.in_flight;
        let mut prices: Vec<CandidateCost> = (0..input.candidates.len())
            .map(|i| CandidateCost {
                terms: Terms::new(&["in_flight"], [f64::from(in_flight(i))]),
                ..CandidateCost::of(2.0)
            })
            .collect();
        let (first, second) = two(input.random, prices.len());
        let (taker, other) = if in_flight(second) < in_flight(first) {
            (second, first)
        } else {
            (first, second)
        };
        prices[other].cost = 1.0;
        prices[taker].cost = 0.0;
        prices
    }
}

/// Returns two different indices below `count`, all pairs equally likely; the only index twice if
/// there is no other.
fn two(random: u64, count: usize) -> (usize, usize) {
    let below = |random: u64, count: usize| {
        usize::try_from(random % count.max(1) as u64)
            .expect("a remainder is smaller than a count of things in memory")
    };
    let first = below(random_for(random, 0), count);
    let onward = below(random_for(random, 1), count.saturating_sub(1));
    (
        first,
        (first + usize::from(count > 1) + onward) % count.max(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_equally_likely_and_never_one_target_twice() {
        let mut pairs = [[0u32; 4]; 4];
        for random in 0..12_000 {
            let (first, second) = two(random, 4);
            pairs[first][second] += 1;
        }
        for (first, row) in pairs.iter().enumerate() {
            for (second, count) in row.iter().enumerate() {
                let expected = if first == second { 0..1 } else { 850..1150 };
                assert!(expected.contains(count), "{pairs:?}");
            }
        }
        assert_eq!(two(7, 1), (0, 0));
    }
}
