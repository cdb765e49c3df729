//! `kv_aware`: the target with the longest contiguous cached prefix, blocks weighted by the medium they are on.
//!
//! No match, and equal matches, go to the fewest requests in flight. Load never outweighs a longer match: that is what
//! `warm` is for. Where there is no match at all, a target that is remembered to have served such a prompt goes before.
//!
//! Cost: `1 - overlap_weight * weighted_blocks / prompt blocks`, so 0 is a prompt fully on the GPU and 1 a cold one; 0 for
//! the target that is remembered. Terms: `device_blocks`, `host_blocks`, `disk_blocks`, `speculative_blocks` (assumed to be
//! on the GPU until confirmed), `weighted_blocks`, `in_flight`, `remembered` (1 for that one). Remote storage counts and
//! weighs as disk.

use super::{CostUnit, Price, Rule, Scene, Terms, remembered::Remembered};
use crate::RingSettings;

#[derive(Debug)]
pub(super) struct KvAware {
    remembered: Remembered,
}

impl KvAware {
    pub(super) fn new(ring: RingSettings) -> Self {
        Self {
            remembered: Remembered::new(ring),
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

impl Rule for KvAware {
    fn unit(&self) -> CostUnit {
        CostUnit::Score
    }

    fn draws(&self) -> bool {
        true
    }

    fn price(&self, scene: &Scene<'_>) -> Vec<Price> {
        let weights = scene.medium_weights;
        let matched = scene
            .contenders
            .iter()
            .any(|contender| contender.surveyed.held.total() > 0);
        let remembered = if matched {
            None
        } else {
            self.remembered.preferred(scene)
        };
        // In every namespace the same prompt: dividing by the blocks of each one's own size keeps shares comparable.
        scene
            .contenders
            .iter()
            .enumerate()
            .map(|(i, contender)| {
                let hinted = remembered == Some(i);
                let held = contender.surveyed.held;
                let (device, host, speculative) = (
                    f64::from(held.device),
                    f64::from(held.host),
                    f64::from(held.speculative),
                );
                let disk = f64::from(held.disk) + f64::from(held.remote);
                let weighted =
                    weights.gpu * (device + speculative) + weights.cpu * host + weights.disk * disk;
                let share = weighted / f64::from(contender.surveyed.prompt_blocks.max(1));
                let load = contender.standing.load;
                let in_flight = f64::from(load.in_flight);
                Price {
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
                    ..Price::of(if hinted {
                        0.0
                    } else {
                        1.0 - scene.overlap_weight * share
                    })
                }
            })
            .collect()
    }
}
