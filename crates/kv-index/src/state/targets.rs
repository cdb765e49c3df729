//! The targets of the index, by slot.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use kv_blocks::{BlockSize, StreamPosition, Target, Tier, WorkerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::{copies::Copies, runs::MAX_SLOTS};

/// Size of a target's own blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnBlockSize {
    /// From the configuration or the engine.
    Expected(BlockSize),
    /// From its events, since its content was last cleared.
    Shown(BlockSize),
}

impl OwnBlockSize {
    pub(crate) fn size(self) -> BlockSize {
        let (Self::Expected(size) | Self::Shown(size)) = self;
        size
    }

    pub(crate) fn to_expected(self) -> Self {
        Self::Expected(self.size())
    }
}

/// What another process needs to continue a target's stream, and what this one needs to continue an
/// earlier process's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResumptionState {
    /// The batch of its stream up to which all updates are applied, if another process could
    /// continue there.
    pub(crate) position: Option<StreamPosition>,
    /// Whether its blocks are from an earlier process, and its stream has not proven yet that it
    /// continues at `position`.
    pub(crate) unproven: bool,
    /// Whether other publishers than the engine have had a part in its content.
    pub(crate) shared: bool,
    pub(crate) next_batch: NextBatch,
}

/// How much of the batch behind a target's position is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NextBatch {
    /// Nothing.
    #[default]
    Ahead,
    /// Some or all updates.
    Begun,
    /// Some updates, by an earlier process whose position this was: the batch will repeat them.
    Repeats(StreamPosition),
}

/// One target.
#[derive(Debug)]
pub(crate) struct TargetState {
    pub(crate) target: Target,
    pub(crate) model: Option<Arc<str>>,
    /// `None` as long as neither its events nor the engine have named it.
    pub(crate) block_size: Option<OwnBlockSize>,
    /// Whether lookups credit its announcements.
    pub(crate) trusted: bool,
    /// Whether its stream has had a loss since it was last cleared.
    pub(crate) torn: bool,
    /// Whether the target has another slot, or none. The blocks of this one are credited to no
    /// target and are being cleared.
    pub(crate) retired: bool,
    /// Confirmed blocks in each tier.
    pub(crate) blocks: [u64; Tier::ALL.len()],
    /// Confirmed blocks in any tier.
    pub(crate) block_count: u64,
    pub(crate) copies: Copies,
    pub(crate) resumption: ResumptionState,
}

impl TargetState {
    fn new(target: Target) -> Self {
        Self {
            target,
            model: None,
            block_size: None,
            trusted: true,
            torn: false,
            retired: false,
            blocks: [0; Tier::ALL.len()],
            block_count: 0,
            copies: Copies::default(),
            resumption: ResumptionState::default(),
        }
    }

    /// Returns whether lookups credit its announced blocks.
    pub(crate) fn is_credited(&self) -> bool {
        self.trusted && !self.resumption.unproven
    }

    /// Returns whether a batch is applied in part, so that a copy of the content would be none of
    /// whole batches.
    pub(crate) fn is_within_batch(&self) -> bool {
        let ResumptionState {
            position,
            shared,
            next_batch,
            ..
        } = self.resumption;
        position.is_some() && !shared && next_batch == NextBatch::Begun
    }
}

/// All targets.
#[derive(Debug, Default)]
pub(crate) struct TargetTable {
    by_target: HashMap<Target, u32>,
    slots: Vec<Option<TargetState>>,
    free: Vec<u32>,
    /// Retired slots that are not cleared yet, at most as many as there are slots.
    sweeps: VecDeque<SlotSweep>,
    /// Blocks with counted copies.
    copied: u64,
}

/// The clearing of a retired slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotSweep {
    pub(crate) slot: u32,
    /// The run to continue with.
    pub(crate) next: u32,
}

/// Bytes of a block with counted copies.
const COPY_BYTES: u64 = 128;

impl TargetTable {
    pub(crate) fn find(&self, target: Target) -> Option<u32> {
        self.by_target.get(&target).copied()
    }

    /// Returns the slot of a target; adds a new one if it has none; `None` if all slots are used.
    pub(crate) fn find_or_add(&mut self, target: Target) -> Option<u32> {
        if let Some(slot) = self.find(target) {
            return Some(slot);
        }
        self.add(TargetState::new(target))
    }

    /// Adds a slot for an owner, the slot of its target from now on; `None` if all slots are used.
    fn add(&mut self, owner: TargetState) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_SLOTS as usize => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).expect("less than `MAX_SLOTS`")
            }
            None => return None,
        };
        self.by_target.insert(owner.target, slot);
        self.slots[slot as usize] = Some(owner);
        Some(slot)
    }

    /// Retires a slot and gives its target an empty one with the same model, block size and trust;
    /// `None` without a change if all slots are used.
    pub(crate) fn replace(&mut self, slot: u32) -> Option<u32> {
        let TargetState {
            target,
            ref model,
            block_size,
            trusted,
            resumption,
            ..
        } = *self.get(slot);
        let fresh = self.add(TargetState {
            model: model.clone(),
            block_size: block_size.map(OwnBlockSize::to_expected),
            trusted,
            resumption: ResumptionState {
                shared: resumption.shared,
                ..ResumptionState::default()
            },
            ..TargetState::new(target)
        })?;
        self.get_mut(slot).retired = true;
        self.sweeps.push_back(SlotSweep { slot, next: 0 });
        Some(fresh)
    }

    /// Retires the slot of a removed target.
    pub(crate) fn retire(&mut self, slot: u32) {
        let owner = self.get_mut(slot);
        owner.retired = true;
        let target = owner.target;
        self.by_target.remove(&target);
        self.sweeps.push_back(SlotSweep { slot, next: 0 });
    }

    /// Returns the retired slot to clear next.
    pub(crate) fn next_sweep(&self) -> Option<SlotSweep> {
        self.sweeps.front().copied()
    }

    /// Records how far the sweep of the first retired slot is: up to run `next`, or `None`: it has
    /// no held or expected blocks any more, and is freed.
    pub(crate) fn continue_sweep(&mut self, next: Option<u32>) {
        if let (Some(next), Some(sweep)) = (next, self.sweeps.front_mut()) {
            sweep.next = next;
        } else if let Some(sweep) = self.sweeps.pop_front() {
            self.free(sweep.slot);
        }
    }

    /// Returns whether there are retired slots that are not cleared yet.
    pub(crate) fn has_sweeps(&self) -> bool {
        !self.sweeps.is_empty()
    }

    /// Returns the slots whose blocks belong to a target for subscribers: its own, and retired ones
    /// that are not swept yet.
    pub(crate) fn slots_of(&self, target: Target) -> Vec<u32> {
        let retired = self.sweeps.iter().map(|sweep| sweep.slot);
        let retired = retired.filter(|slot| self.get(*slot).target == target);
        self.find(target).into_iter().chain(retired).collect()
    }

    fn free(&mut self, slot: u32) {
        if let Some(owner) = self.slots[slot as usize].take() {
            self.copied -= owner.copies.len();
            self.free.push(slot);
        }
    }

    /// Returns the number of slots in use or free.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, slot: u32) -> &TargetState {
        self.slots[slot as usize]
            .as_ref()
            .expect("a target outlives what it holds")
    }

    /// Changes a target's copies and updates their total.
    pub(crate) fn copies<R>(&mut self, slot: u32, change: impl FnOnce(&mut Copies) -> R) -> R {
        let copies = &mut self.get_mut(slot).copies;
        let before = copies.len();
        let done = change(copies);
        let after = copies.len();
        self.copied = self.copied + after - before;
        done
    }

    /// Returns the blocks with counted copies, of all targets.
    #[cfg(test)]
    pub(crate) fn copied(&self) -> u64 {
        self.copied
    }

    /// Returns the bytes of all copy counts, estimated.
    pub(crate) fn copies_bytes(&self) -> u64 {
        self.copied * COPY_BYTES
    }

    /// Returns each slot, with its target if it is in use, retired ones too.
    pub(crate) fn slots_mut(&mut self) -> impl Iterator<Item = &mut Option<TargetState>> {
        self.slots.iter_mut()
    }

    /// Returns the targets, retired ones too.
    pub(crate) fn states(&mut self) -> impl Iterator<Item = &mut TargetState> {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut TargetState {
        self.slots[slot as usize]
            .as_mut()
            .expect("a target outlives what it holds")
    }

    /// Returns all targets with their slots, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Target, u32)> {
        self.by_target.iter().map(|(target, slot)| (*target, *slot))
    }

    /// Returns every slot with its owner, including retired ones.
    #[cfg(test)]
    pub(crate) fn owners(&self) -> impl Iterator<Item = (u32, &TargetState)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(slot, owner)| Some((slot, owner.as_ref()?)))
    }

    /// Returns the targets of a worker.
    pub(crate) fn ranks(&self, worker: WorkerId) -> Vec<Target> {
        self.by_target
            .keys()
            .filter(|target| target.worker == worker)
            .copied()
            .collect()
    }
}

/// Returns the number under which targets of one model share engine hashes.
pub(crate) fn hash_group(model: &str) -> u32 {
    // Two models under one number only split earlier.
    (xxh3_64(model.as_bytes()) >> 32) as u32
}
