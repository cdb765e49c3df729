//! `lmetric`: the target with the lowest product of new prefill tokens and batch size.
//!
//! A baseline for comparisons, with no parameters (LMetric, arXiv 2603.15202). Cost: the prompt
//! tokens that the target would have to compute with this request, its queue included, times its
//! requests in flight with this one. Weights do not count, and at overlap weight 0 the cache of this
//! prompt does not either. Terms: `prefill_tokens`, `batch_size`.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("lmetric"),
    facts: &[PolicyFact::BlockOverlap],
    rule: |_| Box::new(Lmetric),
};

#[derive(Debug)]
pub(super) struct Lmetric;

impl PolicyRule for Lmetric {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let price = |contender: &PolicyCandidate<'_>| {
            let tokens = new_prefill_tokens(input, contender);
            let batch_size = f64::from(contender.state.load.in_flight) + 1.0;
            CandidateCost {
                terms: Terms::new(&["prefill_tokens", "batch_size"], [tokens, batch_size]),
                ..CandidateCost::of(tokens * batch_size)
            }
        };
        input.candidates.iter().map(price).collect()
    }
}

/// Returns the prompt tokens that the target would have to compute with this request: its queue and
/// the uncached part of the prompt, or all of it where caches do not count.
pub(super) fn new_prefill_tokens(input: &PolicyInput<'_>, contender: &PolicyCandidate<'_>) -> f64 {
    if input.overlap_weight > 0.0 {
        contender.prefill_tokens_after() as f64
    } else {
        contender.state.load.queued_prefill_tokens as f64 + f64::from(input.prompt_tokens)
    }
}
