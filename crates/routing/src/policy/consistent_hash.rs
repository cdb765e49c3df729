//! `consistent_hash`: routes a session to the owner of its key on a ring of 100 points per target,
//! whatever the load.
//!
//! The key's position on the ring is the XXH3 of its eight bytes, most significant first. A request
//! without a session is routed by its prefix key, one without either at random. Weights do not
//! count.
//!
//! Cost: 0 for the owner, 1 for the others, fewest in flight first. Terms: none.

use kv_blocks::WorkerId;
use settings::word;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    cost::{CandidateCost, CostUnit},
    ring::RingCache,
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::RingSettings;

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("consistent_hash"),
    facts: &[PolicyFact::Affinity],
    rule: |settings| Box::new(ConsistentHash::new(settings.ring())),
};

const VIRTUAL_NODES: u32 = 100;

#[derive(Debug)]
pub(super) struct ConsistentHash {
    rings: RingCache,
    seed: u64,
}

impl ConsistentHash {
    pub(super) fn new(settings: RingSettings) -> Self {
        Self {
            rings: RingCache::new(VIRTUAL_NODES, settings.seed),
            seed: settings.seed,
        }
    }
}

impl PolicyRule for ConsistentHash {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let key = input.affinity.session().unwrap_or(input.random);
        let position = xxh3_64_with_seed(&key.to_be_bytes(), self.seed);
        let owner = self
            .rings
            .around(&input.candidates)
            .clockwise(position)
            .next();
        let price = |(i, contender): (usize, &PolicyCandidate<'_>)| CandidateCost {
            tie: u64::from(contender.state.load.in_flight),
            ..CandidateCost::of(f64::from(u8::from(Some(i) != owner)))
        };
        input.candidates.iter().enumerate().map(price).collect()
    }

    fn forget(&mut self, worker: WorkerId) {
        self.rings.forget(worker);
    }
}
