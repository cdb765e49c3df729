//! Everything behind the lock, and the accounts that go with it.

mod answers;
mod events;
mod promises;

use std::sync::Arc;

use kv_blocks::{Target, Tier, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    IndexSettings,
    blocks::{BlockKey, Blocks},
    copies::Copies,
    owner::{Name, OwnerId, Owners},
    predictions::Predictions,
    spaces::Spaces,
};

// Estimates: the entry, its share of the table's empty slots, its own allocation.
const BLOCK_BYTES: u64 = 128;
const MEMBERSHIP_BYTES: u64 = 12;
const ALIAS_BYTES: u64 = 64;
const PREDICTION_BYTES: u64 = 208;
const COPY_BYTES: u64 = 128;

#[derive(Debug)]
pub(crate) struct State {
    settings: IndexSettings,
    spaces: Spaces,
    owners: Owners,
    blocks: Blocks,
    predictions: Predictions,
    aliases: u64,
    /// Blocks whose copies are counted.
    counted: u64,
    orphans: u64,
    shed: u64,
    /// While predictions are being pruned: how many are to be left.
    pruning: Option<u64>,
}

/// How far the forgetting of a target has come.
#[derive(Clone, Debug)]
pub(crate) enum Clearing {
    /// Nothing is forgotten yet.
    Begin,
    /// The next part of its names.
    Names(usize),
    /// What it is expected to hold by promises whose stamps are below this; newer ones came since.
    Promises(u64),
}

/// Entries touched at once, under one hold of the lock, by whatever goes through many.
const SLICE: usize = 4096;

impl State {
    pub(crate) fn new(settings: IndexSettings) -> Self {
        Self {
            blocks: Blocks::new(settings.memory_budget),
            settings,
            spaces: Spaces::default(),
            owners: Owners::default(),
            predictions: Predictions::default(),
            aliases: 0,
            counted: 0,
            orphans: 0,
            shed: 0,
            pruning: None,
        }
    }

    pub(crate) fn register(&mut self, target: Target, model: Arc<str>) {
        let owner = self.owners.find_or_add(target);
        self.owners.get_mut(owner).model = Some(model);
    }

    /// Ends the registration of a target that serves another model; returns whether it did.
    pub(crate) fn unregister_other(&mut self, target: Target, model: &str) -> bool {
        let Some(owner) = self.owners.find(target) else { return false };
        let known = &mut self.owners.get_mut(owner).model;
        known.take_if(|known| **known != *model).is_some()
    }

    /// The targets of a worker.
    pub(crate) fn ranks(&self, worker: WorkerId) -> Vec<Target> {
        self.owners.iter().map(|(target, _)| target).filter(|target| target.worker == worker).collect()
    }

    /// One step of forgetting what a target holds; returns the next one.
    pub(crate) fn clear(&mut self, target: Target, step: Clearing) -> Option<Clearing> {
        let owner = self.owners.find(target)?;
        Some(match step {
            Clearing::Begin => {
                self.owners.get_mut(owner).forget_habits();
                Clearing::Names(0)
            }
            Clearing::Names(part) if part < self.owners.get(owner).aliases.parts() => {
                for (name, alias) in self.owners.get(owner).names(part) {
                    self.leave_all_tiers(owner, alias.key);
                    self.drop_name(owner, name);
                }
                Clearing::Names(part + 1)
            }
            step => return self.clear_promises(target, step),
        })
    }

    /// One step of forgetting what a target holds in one tier.
    pub(crate) fn clear_tier(&mut self, target: Target, tier: Tier, step: Clearing) -> Option<Clearing> {
        let owner = self.owners.find(target)?;
        Some(match step {
            Clearing::Names(part) if part < self.owners.get(owner).aliases.parts() => {
                for (name, alias) in self.owners.get(owner).names(part) {
                    self.leave_tier(owner, alias.key, tier);
                    if !self.holds(owner, alias.key) {
                        self.drop_name(owner, name);
                    }
                }
                Clearing::Names(part + 1)
            }
            Clearing::Begin => Clearing::Names(0),
            step => return self.clear(target, step),
        })
    }

    /// Forgets a target and all that came in since it was cleared.
    pub(crate) fn forget(&mut self, target: Target) {
        let mut step = Some(Clearing::Begin);
        while let Some(next) = step {
            step = self.clear(target, next);
        }
        if let Some(owner) = self.owners.find(target) {
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
            if tier == Tier::Device {
                self.copies(owner, |copies| copies.leave(key));
            }
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

    /// Changes what is known of a target's copies, and keeps the account.
    fn copies<R>(&mut self, owner: OwnerId, change: impl FnOnce(&mut Copies) -> R) -> R {
        let copies = &mut self.owners.get_mut(owner).copies;
        let before = copies.len();
        let done = change(copies);
        self.counted = self.counted + copies.len() - before;
        done
    }

    fn drop_name(&mut self, owner: OwnerId, name: Name) {
        if let Some(alias) = self.owners.get_mut(owner).aliases.remove(&name) {
            self.aliases -= 1;
            self.spaces.leave(alias.key.space);
        }
    }

    fn bytes(&self) -> u64 {
        self.blocks.distinct() * BLOCK_BYTES
            + self.blocks.memberships() * MEMBERSHIP_BYTES
            + self.aliases * ALIAS_BYTES
            + self.counted * COPY_BYTES
            + self.predictions.len() * PREDICTION_BYTES
            + self.spaces.bytes()
    }

    /// A block's part in a digest.
    fn mixed(&self, key: BlockKey) -> u64 {
        xxh3_64_with_seed(&key.hash.0.to_le_bytes(), self.spaces.get(key.space).digest)
    }
}

#[cfg(test)]
mod tests {
    use std::{ops::Range, time::Duration};

    use kv_blocks::{BlockSize, DpRank, EngineHash, Identity, Moment, Namespace, SequenceHash, Stored};

    use super::*;
    use crate::predictions::{Kind, Promise};

    const TARGET: Target = Target { worker: WorkerId(1), rank: DpRank(0) };
    const OTHER: Target = Target { worker: WorkerId(2), rank: DpRank(0) };
    const BLOCKS: u32 = 20_000;

    fn state(settings: IndexSettings) -> State {
        let mut state = State::new(settings);
        state.register(TARGET, Arc::from("m"));
        state
    }

    fn size() -> BlockSize {
        BlockSize::new(1).unwrap()
    }

    fn promise(state: &mut State, target: Target, hashes: Range<u64>, seconds: u64) {
        let namespace =
            Namespace { model: Arc::from("m"), lora: None, salt: None, block_size: size(), identity: Identity::Tokens };
        let chain: Vec<_> = hashes.map(SequenceHash).collect();
        let expires = Moment::at(Duration::from_secs(seconds));
        state.promise(target, &namespace, &chain, Moment::START, Promise { kind: Kind::Predicted, expires });
    }

    #[test]
    fn a_step_of_forgetting_touches_a_small_part_of_a_big_target() {
        type Step = fn(&mut State, Clearing) -> Option<Clearing>;
        let steps: [Step; 2] =
            [|state, step| state.clear(TARGET, step), |state, step| state.clear_tier(TARGET, Tier::Device, step)];
        for step in steps {
            let mut state = state(IndexSettings::default());
            state.store(
                TARGET,
                &Stored {
                    hashes: (0..u64::from(BLOCKS)).map(EngineHash).collect(),
                    parent: None,
                    tokens: (0..BLOCKS).collect(),
                    block_size: size(),
                    lora: None,
                    salt: None,
                    tier: Tier::Device,
                },
            );
            for from in 0..10 {
                promise(&mut state, TARGET, from * 1000..(from + 1) * 1000, 100);
            }
            let (mut next, mut left) = (Some(Clearing::Begin), state.blocks.memberships() + state.predictions.len());
            assert_eq!(left, 30_000);
            while let Some(now) = next {
                next = step(&mut state, now);
                let after = state.blocks.memberships() + state.predictions.len();
                assert!(left - after <= SLICE as u64, "{} at once", left - after);
                left = after;
            }
            assert_eq!(left, 0);
        }
    }

    #[test]
    fn forgetting_what_one_target_is_expected_to_hold_takes_no_step_for_what_others_are() {
        let mut state = state(IndexSettings::default());
        promise(&mut state, OTHER, 0..10_000, 100);
        promise(&mut state, TARGET, 0..5000, 100);
        promise(&mut state, OTHER, 10_000..20_000, 100);
        let (mut next, mut steps) = (Some(Clearing::Begin), 0);
        while let Some(now) = next {
            next = state.clear_promises(TARGET, now);
            // What came since stays.
            if steps == 0 {
                promise(&mut state, TARGET, 6000..6010, 100);
            }
            steps += 1;
        }
        assert_eq!((steps, state.predictions.len()), (3, 20_010), "one to begin, and two slices");
    }

    #[test]
    fn expired_entries_are_freed_in_slices() {
        let mut state = state(IndexSettings::default());
        for from in 0..10 {
            promise(&mut state, TARGET, from * 1000..(from + 1) * 1000, 1);
        }
        let later = Moment::at(Duration::from_secs(1));
        assert!(state.tidy(later));
        assert_eq!(state.predictions.len(), 10_000 - SLICE as u64);
        while state.tidy(later) {}
        assert_eq!(state.predictions.len(), 0);
    }

    #[test]
    fn a_big_pruning_is_spread_over_calls_and_the_bound_holds_all_along() {
        let max = 100_000;
        let mut state =
            state(IndexSettings { prediction_max_blocks: max, prune_target_ratio: 0.5, ..IndexSettings::default() });
        for from in 0..100 {
            promise(&mut state, TARGET, from * 1000..(from + 1) * 1000, 100);
        }
        assert_eq!(state.predictions.len(), max);
        promise(&mut state, TARGET, max..max + 1000, 100);
        assert_eq!(state.predictions.len(), max - SLICE as u64 + 1000);
        promise(&mut state, TARGET, max + 1000..max + 2000, 100);
        assert_eq!(state.predictions.len(), max - 2 * SLICE as u64 + 2000);
        while state.tidy(Moment::START) {}
        assert_eq!(state.predictions.len(), max / 2);
    }
}
