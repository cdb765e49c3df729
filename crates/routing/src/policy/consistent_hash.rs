//! `consistent_hash`: a session to the target that owns its key on a ring of 100 points per target, whatever the load.
//!
//! The key's place on the ring is the XXH3 of its eight bytes, the first one the most significant. A request without a
//! session goes by its prefix, one without either by lot. Weights do not count.
//!
//! Cost: 0 for the owner, 1 for the others, fewest in flight first. Terms: none.

use kv_blocks::WorkerId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Contender, CostUnit, Price, Rule, Scene, ring::Rings};
use crate::RingSettings;

const VIRTUAL_NODES: u32 = 100;

#[derive(Debug)]
pub(super) struct ConsistentHash {
    rings: Rings,
    seed: u64,
}

impl ConsistentHash {
    pub(super) fn new(settings: RingSettings) -> Self {
        Self {
            rings: Rings::new(VIRTUAL_NODES, settings.seed),
            seed: settings.seed,
        }
    }
}

impl Rule for ConsistentHash {
    fn unit(&self) -> CostUnit {
        CostUnit::Rank
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let key = scene.affinity.session().unwrap_or(scene.random);
        let place = xxh3_64_with_seed(&key.to_be_bytes(), self.seed);
        let owner = self.rings.around(&scene.contenders).clockwise(place).next();
        let price = |(i, contender): (usize, &Contender<'_>)| Price {
            tie: u64::from(contender.standing.load.in_flight),
            ..Price::of(f64::from(u8::from(Some(i) != owner)))
        };
        scene.contenders.iter().enumerate().map(price).collect()
    }

    fn forget(&mut self, worker: WorkerId) {
        self.rings.forget(worker);
    }
}
