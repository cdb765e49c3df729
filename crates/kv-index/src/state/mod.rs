//! Everything behind the lock, and the accounts that go with it.

mod answers;
mod events;
mod promises;

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash, Target, Tier, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    IndexSettings,
    blocks::{BlockKey, Blocks},
    owner::{OwnerId, Owners},
    predictions::Predictions,
    spaces::Spaces,
};

// Estimates: the entry, its share of the table's empty slots, its own allocation.
const BLOCK_BYTES: u64 = 128;
const MEMBERSHIP_BYTES: u64 = 12;
const ALIAS_BYTES: u64 = 64;
const PREDICTION_BYTES: u64 = 192;

#[derive(Debug)]
pub(crate) struct State {
    settings: IndexSettings,
    spaces: Spaces,
    owners: Owners,
    blocks: Blocks,
    predictions: Predictions,
    aliases: u64,
    orphans: u64,
    shed: u64,
}

impl State {
    pub(crate) fn new(settings: IndexSettings) -> Self {
        Self {
            settings,
            spaces: Spaces::default(),
            owners: Owners::default(),
            blocks: Blocks::default(),
            predictions: Predictions::default(),
            aliases: 0,
            orphans: 0,
            shed: 0,
        }
    }

    pub(crate) fn register(&mut self, target: Target, model: Arc<str>) {
        let owner = self.owners.find_or_add(target);
        if self.owners.get(owner).model.as_ref().is_some_and(|known| *known != model) {
            self.clear(target);
        }
        self.owners.get_mut(owner).model = Some(model);
    }

    pub(crate) fn clear(&mut self, target: Target) {
        let Some(owner) = self.owners.find(target) else { return };
        for alias in self.owners.get_mut(owner).forget_names().into_values() {
            self.leave_all_tiers(owner, alias.key);
            self.aliases -= 1;
            self.spaces.leave(alias.key.space);
        }
        self.drop_predictions(owner);
    }

    pub(crate) fn remove_worker(&mut self, worker: WorkerId) {
        let ranks: Vec<_> = self.owners.iter().filter(|(target, _)| target.worker == worker).collect();
        for (target, owner) in ranks {
            self.clear(target);
            self.owners.forget(owner);
        }
    }

    fn holds(&self, owner: OwnerId, key: BlockKey) -> bool {
        self.blocks.get(key).is_some_and(|block| !block.tiers_of(owner).is_empty())
    }

    fn leave_all_tiers(&mut self, owner: OwnerId, key: BlockKey) {
        for tier in Tier::ALL {
            self.leave_tier(owner, key, tier);
        }
    }

    fn leave_tier(&mut self, owner: OwnerId, key: BlockKey, tier: Tier) -> bool {
        let change = self.blocks.remove(key, owner, tier);
        if change.tier {
            let mixed = self.mixed(key);
            let content = &mut self.owners.get_mut(owner).content[tier.index()];
            content.blocks -= 1;
            content.digest = content.digest.wrapping_sub(mixed);
        }
        if change.block {
            self.spaces.leave(key.space);
        }
        change.tier
    }

    fn drop_name(&mut self, owner: OwnerId, name: (EngineHash, BlockSize)) {
        if let Some(alias) = self.owners.get_mut(owner).aliases.remove(&name) {
            self.aliases -= 1;
            self.spaces.leave(alias.key.space);
        }
    }

    fn bytes(&self) -> u64 {
        self.blocks.distinct() * BLOCK_BYTES
            + self.blocks.memberships() * MEMBERSHIP_BYTES
            + self.aliases * ALIAS_BYTES
            + self.predictions.len() * PREDICTION_BYTES
            + self.spaces.bytes()
    }

    /// A block's part in a digest.
    fn mixed(&self, key: BlockKey) -> u64 {
        xxh3_64_with_seed(&key.hash.0.to_le_bytes(), self.spaces.get(key.space).digest)
    }
}
