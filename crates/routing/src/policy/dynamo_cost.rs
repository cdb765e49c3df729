//! `dynamo_cost`: the target with the least work in blocks to compute and to hold.
//!
//! Cost: `overlap_weight * prefill_blocks + decode_blocks + request_blocks`. Terms:
//!
//! - `prefill_blocks`: prompt tokens that are not cached on the target and those still queued
//!   there, divided by its block size, as a fraction; queued tokens leave at their request's first
//!   token. Where hits outside the device have a weight below 1, the rest of them counts as work
//!   too;
//! - `decode_blocks`: blocks of its active sequences including this prompt, shared prefixes counted
//!   once; a sequence's blocks leave when it ends, and all are 0 while active blocks are not
//!   tracked;
//! - `overlap_weight`: the weight in force. At 0 caches do not count: pure load balancing;
//! - `request_blocks`: its requests in flight, times the configured number of blocks (0 unless
//!   set).

use settings::word_or;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::DynamoSettings;

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word_or("dynamo_cost", &["kv"]),
    facts: &[PolicyFact::BlockOverlap],
    rule: |settings| Box::new(DynamoCost::new(settings.section.dynamo)),
};

#[derive(Debug)]
pub(super) struct DynamoCost {
    settings: DynamoSettings,
}

impl DynamoCost {
    pub(super) fn new(settings: DynamoSettings) -> Self {
        Self { settings }
    }

    /// Returns the tokens to be computed on the target with this request.
    fn prefill_tokens(&self, contender: &PolicyCandidate<'_>) -> f64 {
        let warm = contender.overlap.warm;
        let stored = f64::from(warm.disk) + f64::from(warm.remote);
        let again = (1.0 - self.settings.host_cache_hit_weight) * f64::from(warm.host)
            + (1.0 - self.settings.disk_cache_hit_weight) * stored;
        contender.prefill_tokens_after() as f64 + again
    }
}

impl PolicyRule for DynamoCost {
    fn unit(&self) -> CostUnit {
        CostUnit::Blocks
    }

    fn draws(&self) -> bool {
        true
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let weight = input.overlap_weight;
        input
            .candidates
            .iter()
            .map(|contender| {
                let block_size =
                    f64::from(contender.overlap.candidate.namespace.block_size.tokens());
                let prefill_blocks = self.prefill_tokens(contender) / block_size;
                let decode_blocks = contender.state.blocks_after as f64;
                let request_blocks =
                    self.settings.active_request_weight * f64::from(contender.state.load.in_flight);
                CandidateCost {
                    terms: Terms::new(
                        &[
                            "prefill_blocks",
                            "decode_blocks",
                            "overlap_weight",
                            "request_blocks",
                        ],
                        [prefill_blocks, decode_blocks, weight, request_blocks],
                    ),
                    ..CandidateCost::of(weight * prefill_blocks + decode_blocks + request_blocks)
                }
            })
            .collect()
    }
}
