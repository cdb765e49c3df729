//! `rendezvous_hash`: a session to the target that draws best with it, whatever the load.
//!
//! Each target's draw is the XXH3, with the configured seed, of the key's eight bytes (the first one the most
//! significant) and `NAME/RANK`. Read as a fraction `u`, it scores `weight / -ln(1 - u)`, and the highest score wins: a
//! target gets as many keys as its `workers[].weight` says, and one that leaves takes none but its own with it. A
//! request without a session goes by its prefix, one without either by lot.
//!
//! Cost: the place in the order of scores. So the second is who would have the key without the first. Terms: none.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    CandidateCost, CostUnit, PolicyCandidate, PolicyInput, PolicyRule, by_place, ring::identity,
};
use crate::{RingSettings, choose::unit};

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

    fn draw(&self, key: u64, contender: &PolicyCandidate<'_>) -> u64 {
        let candidate = contender.overlap.candidate;
        let mut bytes = key.to_be_bytes().to_vec();
        bytes.extend_from_slice(identity(&candidate.name, candidate.target).as_bytes());
        xxh3_64_with_seed(&bytes, self.seed)
    }
}

impl PolicyRule for RendezvousHash {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, scene: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let key = scene.affinity.session().unwrap_or(scene.random);
        // One over the score: the lowest is the highest, and nothing is divided by zero.
        let mut line: Vec<(f64, u64, usize)> = scene
            .candidates
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let drawn = self.draw(key, contender);
                (
                    -(-unit(drawn)).ln_1p() / contender.overlap.candidate.share(),
                    drawn,
                    i,
                )
            })
            .collect();
        line.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        by_place(line.into_iter().map(|(_, _, i)| i))
    }
}
