//! `sticky`: among the targets that hold most of the prompt the one with the least to compute, until
//! these have far more to compute than the idlest; then the one with the least of all.
//!
//! A baseline for comparisons: the rule that llm-d's router has by default since August 2026. A
//! target counts as warm from four fifths of the prompt on, and the warm ones as saturated where the
//! least loaded of them has 14 seconds of prompt tokens more in its queue than the least loaded of
//! all. Weights do not count, and at overlap weight 0 no target is warm.
//!
//! Cost: prompt tokens to compute there with this request; while warm targets are preferred, those
//! of the others begin above those of the warm ones. Terms: `prefill_tokens`, `warm_share`,
//! `preferred` (1 for a warm target that is not saturated).

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    lmetric::new_prefill_tokens,
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("sticky"),
    facts: &[PolicyFact::BlockOverlap],
    rule: |_| Box::new(Sticky),
};

/// Share of the prompt from which on a target is warm.
const WARM_SHARE: f64 = 0.8;

/// Prompt tokens that a warm target may have in its queue beyond the idlest target, in seconds of its
/// prefill rate.
const SATURATED_S: f64 = 14.0;

#[derive(Debug)]
pub(super) struct Sticky;

impl PolicyRule for Sticky {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let preferred = preferred(input);
        let tokens = |i: usize| new_prefill_tokens(input, &input.candidates[i]);
        let indices = 0..input.candidates.len();
        let above_preferred = indices
            .clone()
            .filter(|i| preferred[*i])
            .map(|i| tokens(i) + 1.0)
            .fold(0.0, f64::max);
        indices
            .map(|i| {
                let beyond = if preferred[i] { 0.0 } else { above_preferred };
                let flag = f64::from(u8::from(preferred[i]));
                CandidateCost {
                    terms: Terms::new(
                        &["prefill_tokens", "warm_share", "preferred"],
                        [tokens(i), warm_share(input, &input.candidates[i]), flag],
                    ),
                    ..CandidateCost::of(tokens(i) + beyond)
                }
            })
            .collect()
    }
}

/// Returns, for each candidate, whether it is warm; false for all where the warm ones are saturated.
fn preferred(input: &PolicyInput<'_>) -> Vec<bool> {
    let is_warm = |contender: &PolicyCandidate<'_>| warm_share(input, contender) >= WARM_SHARE;
    let queued = |contender: &PolicyCandidate<'_>| contender.state.load.queued_prefill_tokens;
    let idlest = input.candidates.iter().map(queued).min().unwrap_or(0);
    let warm_idlest = input
        .candidates
        .iter()
        .filter(|contender| is_warm(contender))
        .min_by_key(|contender| queued(contender));
    let is_saturated = warm_idlest.is_none_or(|contender| {
        let more = queued(contender).saturating_sub(idlest) as f64;
        more > SATURATED_S * contender.state.rates.prefill_tokens_per_s
    });
    input
        .candidates
        .iter()
        .map(|contender| !is_saturated && is_warm(contender))
        .collect()
}

/// Returns the share of the prompt that the target holds; 0 where caches do not count.
fn warm_share(input: &PolicyInput<'_>, contender: &PolicyCandidate<'_>) -> f64 {
    if input.overlap_weight > 0.0 {
        f64::from(contender.overlap.warm.total()) / f64::from(input.prompt_tokens.max(1))
    } else {
        0.0
    }
}
