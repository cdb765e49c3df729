//! `rendezvous_hash`: routes a session to the target with the highest hash score, whatever the
//! load.
//!
//! Each target's hash is the XXH3, with the configured seed, of the key's eight bytes (most
//! significant first) and `NAME/RANK`. As a fraction `u` it gives the score `weight / -ln(1 - u)`,
//! and the highest score wins: a target gets keys in proportion to its `workers[].weight`, and a
//! target that leaves moves only its own keys. A request without a session is routed by its prefix
//! key, one without either at random.
//!
//! Cost: the rank in the order of scores: the second target would own the key without the first.
//! Terms: none.

use settings::word;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    cost::{CandidateCost, CostUnit, by_rank, unit},
    ring::identity,
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};
use crate::RingSettings;

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("rendezvous_hash"),
    facts: &[PolicyFact::Affinity],
    rule: |settings| Box::new(RendezvousHash::new(settings.ring())),
};

#[derive(Debug)]
pub(super) struct RendezvousHash {
    seed: u64,
}

impl RendezvousHash {
    pub(super) fn new(settings: RingSettings) -> Self {
        Self {
            seed: settings.seed,
        }
    }
}

/// Returns the hash of a key and a target.
pub(super) fn hash_of(seed: u64, key: u64, contender: &PolicyCandidate<'_>) -> u64 {
    let candidate = contender.overlap.candidate;
    let mut bytes = key.to_be_bytes().to_vec();
    bytes.extend_from_slice(identity(&candidate.name, candidate.target).as_bytes());
    xxh3_64_with_seed(&bytes, seed)
}

impl PolicyRule for RendezvousHash {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let key = input.affinity.session().unwrap_or(input.random);
        // Sorts by the inverse of the score, lowest first, which avoids a division by zero.
        let mut ranking: Vec<(f64, u64, usize)> = input
            .candidates
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let random = hash_of(self.seed, key, contender);
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
