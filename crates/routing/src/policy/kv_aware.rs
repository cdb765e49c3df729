//! `kv_aware`: the target with the longest contiguous cached prefix, blocks weighted by their
//! medium.
//!
//! Without a match, and between equal matches, the fewest requests in flight win. Load never
//! outweighs a longer match; policy `warm` weighs both. Without any match a target that the prefix
//! memory names is preferred.
//!
//! Cost: `1 - overlap_weight * weighted_blocks / prompt blocks`, so 0 is a prompt fully on the GPU
//! and 1 a cold one; 0 for the target from the prefix memory. Terms: `device_blocks`,
//! `host_blocks`, `disk_blocks`, `speculative_blocks` (assumed to be on the GPU until confirmed),
//! `weighted_blocks`, `in_flight`, `remembered` (1 for the target from the prefix memory). Remote
//! storage counts and weighs as disk.

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    prefix_memory_hint::PrefixMemoryHint,
    rule::{PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::RingSettings;

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("kv_aware"),
    facts: &[PolicyFact::BlockOverlap],
    rule: |settings| Box::new(KvAware::new(settings.ring())),
};

#[derive(Debug)]
pub(super) struct KvAware {
    remembered: PrefixMemoryHint,
}

impl KvAware {
    pub(super) fn new(ring: RingSettings) -> Self {
        Self {
            remembered: PrefixMemoryHint::new(ring),
        }
    }
}

const TERMS: [&str; 7] = [
    "device_blocks",
    "host_blocks",
    "disk_blocks",
    "speculative_blocks",
    "weighted_blocks",
    "in_flight",
    "remembered",
];

impl PolicyRule for KvAware {
    fn unit(&self) -> CostUnit {
        CostUnit::Score
    }

    fn draws(&self) -> bool {
        true
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let weights = input.medium_weights;
        let matched = input
            .candidates
            .iter()
            .any(|contender| contender.overlap.overlap.total() > 0);
        let remembered = if matched {
            None
        } else {
            self.remembered.preferred(input)
        };
        // The prompt is equal in all namespaces: dividing by the blocks of each one's own size
        // keeps shares comparable.
        input
            .candidates
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let hinted = remembered == Some(i);
                let blocks = contender.overlap.overlap;
                let (device, host, speculative) = (
                    f64::from(blocks.device),
                    f64::from(blocks.host),
                    f64::from(blocks.speculative),
                );
                let disk = f64::from(blocks.disk) + f64::from(blocks.remote);
                let weighted =
                    weights.gpu * (device + speculative) + weights.cpu * host + weights.disk * disk;
                let share = weighted / f64::from(contender.overlap.prompt_blocks.max(1));
                let load = contender.state.load;
                let in_flight = f64::from(load.in_flight);
                CandidateCost {
                    tie: u64::from(load.in_flight),
                    terms: Terms::new(
                        &TERMS,
                        [
                            device,
                            host,
                            disk,
                            speculative,
                            weighted,
                            in_flight,
                            f64::from(u8::from(hinted)),
                        ],
                    ),
                    ..CandidateCost::of(if hinted {
                        0.0
                    } else {
                        1.0 - input.overlap_weight * share
                    })
                }
            })
            .collect()
    }
}
