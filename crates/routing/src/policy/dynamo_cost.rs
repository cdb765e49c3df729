//! `dynamo_cost`: the target with the least work in blocks, to be computed and to be held.
//!
//! Cost: `overlap_weight * prefill_blocks + decode_blocks`. Terms:
//!
//! - `prefill_blocks`: prompt tokens that are not cached there and those still queued there, over its block size, as a
//!   fraction; the queued ones leave at their request's first token;
//! - `decode_blocks`: blocks of its active sequences with this prompt among them, shared prefixes counted once; a
//!   sequence's leave when it ends, and all are 0 while active blocks are not tracked;
//! - `overlap_weight`: the weight in force. At 0 caches do not count: pure load balancing.

use super::{CostUnit, Price, Rule, Scene, Terms};

#[derive(Debug, Default)]
pub(super) struct DynamoCost;

impl Rule for DynamoCost {
    fn unit(&self) -> CostUnit {
        CostUnit::Blocks
    }

    fn draws(&self) -> bool {
        true
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let weight = scene.overlap_weight;
        scene
            .contenders
            .iter()
            .map(|contender| {
                let block_size = f64::from(contender.surveyed.candidate.namespace.block_size.tokens());
                let prefill_blocks = contender.prefill_tokens_after() as f64 / block_size;
                let decode_blocks = contender.standing.blocks_after as f64;
                Price {
                    terms: Terms::new(
                        &["prefill_blocks", "decode_blocks", "overlap_weight"],
                        [prefill_blocks, decode_blocks, weight],
                    ),
                    ..Price::of(weight * prefill_blocks + decode_blocks)
                }
            })
            .collect()
    }
}
