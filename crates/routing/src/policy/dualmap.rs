//! `dualmap`: two targets for each session, by two hashes; of these the one with more of the prompt
//! in its cache, unless it is too slow.
//!
//! A baseline for comparisons (DualMap, arXiv 2602.06502). While the predicted time to first token of
//! the warmer of the two is within [`TARGET_MS`], it gets the request; else the faster of the two
//! does, up to twice that time. Beyond it the request leaves its hotspot for the target with the
//! lowest predicted time of all. A request without a session is mapped by its prefix key, one
//! without either at random. Weights do not count, and at overlap weight 0 the faster one counts as
//! the warmer.
//!
//! Cost: 0 for the target that the request is mapped to, 1 for the other one of the two, 2 for the
//! rest; beyond the hotspot the rank by predicted time. Terms: `mapped` (1 or 2: by the first or the
//! second hash), `hotspot` (1 while both are too slow).

use std::cmp::Ordering;

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rendezvous_hash::hash_of,
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::RingSettings;

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("dualmap"),
    facts: &[PolicyFact::BlockOverlap, PolicyFact::Affinity],
    rule: |settings| Box::new(DualMap::new(settings.ring())),
};

/// Predicted time to first token within which the warmer target is kept.
const TARGET_MS: f64 = 5_000.0;

/// Separates the second hash from the first.
const SECOND: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub(super) struct DualMap {
    seed: u64,
}

impl DualMap {
    pub(super) fn new(settings: RingSettings) -> Self {
        Self {
            seed: settings.seed,
        }
    }

    /// Returns the two targets of the request; the same one twice if there is no other.
    fn mapped(&self, input: &PolicyInput<'_>) -> [usize; 2] {
        let key = input.affinity.session().unwrap_or(input.random);
        let best = |seed: u64, without: Option<usize>| {
            input
                .candidates
                .iter()
                .enumerate()
                .filter(|(i, _)| Some(*i) != without)
                .min_by_key(|(_, contender)| hash_of(seed, key, contender))
                .map(|(i, _)| i)
        };
        let first = best(self.seed, None).unwrap_or(0);
        let second = best(self.seed ^ SECOND, Some(first)).unwrap_or(first);
        [first, second]
    }
}

impl PolicyRule for DualMap {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let times: Vec<f64> = input.candidates.iter().map(ttft_ms).collect();
        let mapped = self.mapped(input);
        let winner = winner(input, &times, mapped);
        let hotspot = winner.is_none();
        let costs = match winner {
            None => ranks(&times),
            Some(winner) => (0..times.len())
                .map(|i| {
                    if i == winner {
                        0.0
                    } else if mapped.contains(&i) {
                        1.0
                    } else {
                        2.0
                    }
                })
                .collect(),
        };
        let number = |i: usize| match mapped.iter().position(|mapped| *mapped == i) {
            Some(0) => 1.0,
            Some(_) => 2.0,
            None => 0.0,
        };
        (input.candidates.iter().enumerate().zip(costs))
            .map(|((i, contender), cost)| CandidateCost {
                tie: contender.state.last_dispatch,
                predicted_ttft_ms: Some(times[i]),
                terms: Terms::new(
                    &["mapped", "hotspot"],
                    [number(i), f64::from(u8::from(hotspot))],
                ),
                ..CandidateCost::of(cost)
            })
            .collect()
    }
}

/// Returns the one of the two that gets the request; `None` if both are too slow.
fn winner(input: &PolicyInput<'_>, times: &[f64], [first, second]: [usize; 2]) -> Option<usize> {
    let cached = |i: usize| {
        if input.overlap_weight > 0.0 {
            input.candidates[i].overlap.warm.total()
        } else {
            0
        }
    };
    let faster = if times[second] < times[first] {
        second
    } else {
        first
    };
    let warmer = match cached(first).cmp(&cached(second)) {
        Ordering::Greater => first,
        Ordering::Less => second,
        Ordering::Equal => faster,
    };
    [(warmer, TARGET_MS), (faster, 2.0 * TARGET_MS)]
        .into_iter()
        .find(|(i, most)| times[*i] <= *most)
        .map(|(i, _)| i)
}

/// Returns the predicted time to first token, as under `warm` without slower tiers.
fn ttft_ms(contender: &PolicyCandidate<'_>) -> f64 {
    let state = &contender.state;
    state.rates.overhead_ms
        + state.backlog_ms
        + contender.prefill_ms()
        + state.interleave_ms(contender.overlap.uncached_tokens)
}

/// Returns the rank of each value, the lowest 0; equal values have equal ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let (mut ranks, mut rank) = (vec![0.0; values.len()], 0);
    for (position, i) in order.iter().enumerate() {
        if position > 0 && values[order[position - 1]] < values[*i] {
            rank = position;
        }
        ranks[*i] = rank as f64;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_equal_ranks_and_the_lowest_is_first() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.0, 0.0, 2.0, 1.0]);
        assert_eq!(ranks(&[]), [0.0; 0]);
    }
}
