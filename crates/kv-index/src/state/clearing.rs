//! Clears a target, run by run.

use std::ops::Range;

use kv_blocks::{Namespace, Target, Tier};

use super::{
    IndexState,
    targets::{OwnBlockSize, SlotSweep, hash_group},
};
use crate::{
    copies::Copies,
    lookup::SharedIndex,
    runs::{EXPECTED, tier_number},
};

/// Part of a target's content to clear.
#[derive(Clone, Debug)]
pub(crate) enum ClearScope {
    /// Everything that it holds or is expected to hold.
    All,
    /// Everything that it holds in one tier.
    Tier(Tier),
    /// Everything that it holds in one tier of one namespace.
    Stream(Tier, Namespace),
    /// Everything that it is expected to hold.
    Promises,
}

/// Runs visited under one hold of the lock.
const SLICE: u32 = 1024;
/// Blocks after which the lock is released earlier.
const SLICE_BLOCKS: u32 = 16 << 10;

impl IndexState {
    /// Empties a target by giving it another slot; [`IndexState::sweep`] clears the old one.
    /// Returns `false` without a change if there is no other slot.
    pub(crate) fn retire(&mut self, core: &SharedIndex, target: Target) -> bool {
        let Some(slot) = self.targets.find(target) else {
            return true;
        };
        if self.targets.get(slot).block_count == 0 && self.speculative.blocks() == 0 {
            self.begin(slot, &ClearScope::All);
            self.end_resumption(core, target);
            let size = &mut self.targets.get_mut(slot).block_size;
            *size = size.map(OwnBlockSize::to_expected);
            return true;
        }
        let Some(fresh) = self.targets.replace(slot) else {
            return false;
        };
        self.remove_slot(core, slot);
        let owner = self.targets.get(fresh);
        if let Some(model) = &owner.model {
            self.names.join(fresh, hash_group(model));
        }
        if !owner.trusted {
            core.set_untrusted(fresh, true);
        }
        core.assign(fresh, target);
        // The new slot may need more memory than the old one freed.
        self.stay_within_budget(core);
        true
    }

    /// Removes a target; [`IndexState::sweep`] clears its content.
    pub(crate) fn forget(&mut self, core: &SharedIndex, target: Target) {
        if let Some(slot) = self.targets.find(target) {
            self.targets.retire(slot);
            self.remove_slot(core, slot);
        }
    }

    /// Withdraws the credit for all blocks of a retired slot.
    fn remove_slot(&mut self, core: &SharedIndex, slot: u32) {
        core.unassign(slot);
        let owner = self.targets.get_mut(slot);
        if !owner.is_credited() {
            (owner.trusted, owner.resumption.unproven) = (true, false);
            core.set_untrusted(slot, false);
        }
        self.begin(slot, &ClearScope::All);
        self.names.remove_member(slot);
    }

    /// Clears a slice of the retired slots; returns whether there may be more.
    ///
    /// Blocks stay in the run that they were made in, and a retired slot gets no new ones: one pass
    /// finds all of them.
    pub(crate) fn sweep(&mut self, core: &SharedIndex) -> bool {
        let Some(SlotSweep { slot, next }) = self.targets.next_sweep() else {
            return false;
        };
        let next = self.clear_slot(core, slot, &ClearScope::All, next);
        self.targets.continue_sweep(next);
        self.targets.has_sweeps()
    }

    /// Does one step of a clear from a given run; returns the run to continue with.
    pub(crate) fn clear(
        &mut self,
        core: &SharedIndex,
        target: Target,
        what: &ClearScope,
        from: u32,
    ) -> Option<u32> {
        let slot = self.targets.find(target)?;
        if from == 0 {
            self.begin(slot, what);
        }
        self.clear_slot(core, slot, what, from)
    }

    /// Ends all names that a target has given to blocks; the blocks stay.
    pub(crate) fn forget_names(&mut self, target: Target) {
        let Some(slot) = self.targets.find(target) else {
            return;
        };
        let owner = self.targets.get_mut(slot);
        owner.torn = false;
        owner.block_size = owner.block_size.map(OwnBlockSize::to_expected);
        self.names.isolate(slot);
        self.orphans.clear_names(slot);
        self.chunks.clear(slot);
    }

    /// Drops the records of a target's chunks in a tier.
    pub(crate) fn drop_chunks(&mut self, target: Target, tier: Tier) {
        if let Some(slot) = self.targets.find(target) {
            self.chunks.clear_tier(slot, tier);
        }
    }

    /// Drops blocks of a target that wait for a place in a tier, or only those of one namespace.
    pub(crate) fn drop_waiting(
        &mut self,
        target: Target,
        tier: Tier,
        namespace: Option<&Namespace>,
    ) {
        let Some(slot) = self.targets.find(target) else {
            return;
        };
        match namespace {
            Some(namespace) => self.orphans.clear_stream(slot, namespace, tier),
            None => self.orphans.clear_tier(slot, tier),
        }
    }

    fn clear_slot(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        what: &ClearScope,
        from: u32,
    ) -> Option<u32> {
        let space = match what {
            ClearScope::Stream(_, namespace) => Some(self.namespaces.find(namespace)?),
            _ => None,
        };
        let tiers: &[u32] = match what {
            ClearScope::All => &[0, 1, 2, 3, EXPECTED],
            // A cache reported as empty is not expected to hold anything.
            ClearScope::Tier(Tier::Device) | ClearScope::Stream(Tier::Device, _) => &[0, EXPECTED],
            ClearScope::Tier(tier) | ClearScope::Stream(tier, _) => &[tier_number(*tier)],
            ClearScope::Promises => &[EXPECTED],
        };
        let end = self.writer.runs().min(from.saturating_add(SLICE));
        let mut room = SLICE_BLOCKS;
        for run in from..end {
            if room == 0 {
                return Some(run);
            }
            if space.is_some() && self.writer.space(run) != space {
                continue;
            }
            let before = self.capture_slot(core, run, slot);
            let (left, at_all) = self.writer.clear(core, run, slot, tiers);
            for (tier, blocks) in (0..).zip(left) {
                self.count(slot, tier, -i64::from(blocks), 0);
                room = room.saturating_sub(blocks);
            }
            self.count(slot, 0, 0, -i64::from(at_all));
            self.publish_changes(core, before);
            if left[0] > 0 {
                self.targets.copies(slot, |copies| copies.remove_run(run));
            }
            self.apply_effects();
        }
        (end < self.writer.runs()).then_some(end)
    }

    fn begin(&mut self, slot: u32, what: &ClearScope) {
        self.note_update(slot);
        match what {
            ClearScope::All => {
                self.targets.get_mut(slot).torn = false;
                self.names.clear(slot);
                self.orphans.clear(slot);
                self.chunks.clear(slot);
            }
            ClearScope::Tier(tier) => {
                self.orphans.clear_tier(slot, *tier);
                self.chunks.clear_tier(slot, *tier);
            }
            ClearScope::Stream(tier, namespace) => {
                self.orphans.clear_stream(slot, namespace, *tier)
            }
            ClearScope::Promises => {}
        }
        if matches!(what, ClearScope::All | ClearScope::Tier(Tier::Device)) {
            // All counted blocks are removed: one by one each would be searched in each run.
            self.targets.copies(slot, Copies::distrust);
        }
    }

    /// Returns the runs that a target holds in any tier, with the held blocks.
    pub(super) fn stretches_of(&mut self, core: &SharedIndex, slot: u32) -> Vec<(u32, Range<u32>)> {
        let mut ranges = Vec::new();
        for run in 0..self.writer.runs() {
            self.writer.stretches(core, run, slot, |span| {
                ranges.push((run, span.start..span.end))
            });
        }
        ranges
    }
}
