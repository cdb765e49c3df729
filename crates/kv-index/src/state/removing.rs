//! Removal events of a target's stream.

use std::collections::HashSet;

use kv_blocks::{EngineHash, RemovedBlocks, SequenceHash, Target, Tier};

use super::IndexState;
use crate::{
    UpdateOutcome,
    copies::Copies,
    lookup::SharedIndex,
    medium_streams::StreamBlock,
    orphans::NumberSet,
    report::count,
    runs::{TierSpan, tier_number},
    table::BlockRef,
    writer::CoverChange,
};

impl IndexState {
    /// Removes blocks of a run from a tier of a slot; returns how many it held.
    pub(super) fn remove_from_tier(&mut self, core: &SharedIndex, run: u32, span: TierSpan) -> u32 {
        let before = self.capture(core, run, span.slot);
        let CoverChange { in_tier, at_all } = self.writer.uncover(core, run, span);
        self.count(
            span.slot,
            span.tier,
            -i64::from(in_tier),
            -i64::from(at_all),
        );
        self.publish_changes(core, before);
        if span.tier == tier_number(Tier::Device) {
            self.targets.copies(span.slot, |copies| {
                if in_tier > span.blocks() {
                    copies.remove_run(run);
                } else if !copies.is_empty() {
                    (span.start..span.end).for_each(|at| copies.discard(BlockRef { run, at }));
                }
            });
        }
        in_tier
    }

    /// Removes blocks by their names; of chunks, all blocks but the `staying` ones.
    pub(crate) fn remove(
        &mut self,
        core: &SharedIndex,
        target: Target,
        removed: &RemovedBlocks,
        staying: &HashSet<StreamBlock>,
    ) -> UpdateOutcome {
        let Some(slot) = self.targets.find(target) else {
            return UpdateOutcome::applied(0, removed.hashes.len());
        };
        self.note_update(slot);
        let mut block_refs = Vec::with_capacity(removed.hashes.len());
        self.names
            .resolve_any(slot, &removed.hashes, |at, size, resolved| {
                block_refs.push((at, size, resolved.block_ref))
            });
        block_refs.sort_unstable_by_key(|(at, ..)| *at);
        let mut known = 0;
        let mut rest = &block_refs[..];
        while let Some((_, _, first)) = rest.first() {
            let count = stretch(rest.len(), |at| rest[at].2);
            let (mine, others) = rest.split_at(count);
            rest = others;
            known += self.remove_stretch(core, slot, removed.tier, *first, mine[count - 1].2);
        }
        if !self.orphans.is_empty() {
            let waited = |name: &&EngineHash| {
                self.orphans
                    .removed(slot, NumberSet::Names, name.0, removed.tier)
            };
            known += count(removed.hashes.iter().filter(waited).count());
        }
        for (at, size, block_ref) in block_refs {
            if self.names.is_alone(slot) && !self.writer.holds(core, block_ref, slot) {
                self.names.remove_hash(slot, removed.hashes[at], size);
            }
        }
        if !self.chunks.is_empty() {
            // Last: it may free the blocks that the hashes above were resolved to.
            for name in &removed.hashes {
                let chunk = (removed.tier, *name);
                known += u32::from(self.remove_chunk(core, slot, chunk, staying));
            }
        }
        self.apply_effects();
        // A hole may need more memory than the span it splits.
        self.stay_within_budget(core);
        UpdateOutcome::applied(known, removed.hashes.len())
    }

    pub(crate) fn remove_hashes(
        &mut self,
        core: &SharedIndex,
        target: Target,
        space: u64,
        hashes: &[SequenceHash],
        tier: Tier,
    ) -> UpdateOutcome {
        let Some(slot) = self.targets.find(target) else {
            return UpdateOutcome::applied(0, hashes.len());
        };
        let mut applied = self.remove_known(core, (slot, tier), space, hashes);
        if !self.orphans.is_empty() {
            let waited = |hash: &&SequenceHash| {
                self.orphans
                    .removed(slot, NumberSet::Space(space), hash.0, tier)
            };
            applied += count(hashes.iter().filter(waited).count());
        }
        self.apply_effects();
        self.stay_within_budget(core);
        UpdateOutcome::applied(applied, hashes.len())
    }

    /// Removes the known ones of `hashes` from a tier of a slot; returns how many were there.
    pub(super) fn remove_known(
        &mut self,
        core: &SharedIndex,
        (slot, tier): (u32, Tier),
        space: u64,
        hashes: &[SequenceHash],
    ) -> u32 {
        let mut removed = 0;
        let mut rest = hashes;
        while let Some(first) = rest.first() {
            let Some(block_ref) = self.writer.find(core, space, first.0) else {
                rest = &rest[1..];
                continue;
            };
            let (end, count) = self.writer.stretch(core, block_ref, rest);
            rest = &rest[count..];
            removed += self.remove_stretch(core, slot, tier, block_ref, end);
        }
        removed
    }

    /// Removes blocks of one run from a tier, from `first` to `last` in either direction; returns
    /// how many were there.
    fn remove_stretch(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        tier: Tier,
        first: BlockRef,
        last: BlockRef,
    ) -> u32 {
        let (start, end) = (first.at.min(last.at), first.at.max(last.at) + 1);
        if tier != Tier::Device || self.targets.get(slot).copies.is_empty() {
            if tier == Tier::Device {
                self.targets.copies(slot, |copies| {
                    copies.record_removals(u64::from(end - start))
                });
            }
            let span = TierSpan {
                slot,
                tier: tier_number(tier),
                start,
                end,
            };
            return self.remove_from_tier(core, first.run, span);
        }
        let mut done = 0;
        for number in 0..end - start {
            let at = if first.at <= last.at {
                first.at + number
            } else {
                first.at - number
            };
            let block_ref = BlockRef { run: first.run, at };
            let device_blocks = self.targets.get(slot).blocks[Tier::Device.index()];
            let spare = self.targets.copies(slot, |copies| {
                copies.record_removals(1);
                copies.take(block_ref, device_blocks)
            });
            done += if spare {
                1
            } else {
                self.remove_from_tier(core, block_ref.run, TierSpan::of_block(slot, tier, at))
            };
        }
        while let Some(block_ref) = self.targets.copies(slot, Copies::next_expired) {
            let span = TierSpan::of_block(slot, Tier::Device, block_ref.at);
            self.remove_from_tier(core, block_ref.run, span);
        }
        done
    }

    /// Handles a possible loss of removals in a target's stream: every block counts as held once
    /// from now on, and unbacked credit ends.
    pub(crate) fn mark_loss(&mut self, core: &SharedIndex, target: Target) {
        let Some(slot) = self.targets.find(target) else {
            return;
        };
        self.targets.get_mut(slot).torn = true;
        for block_ref in self.targets.copies(slot, Copies::distrust) {
            let span = TierSpan::of_block(slot, Tier::Device, block_ref.at);
            self.remove_from_tier(core, block_ref.run, span);
        }
        self.apply_effects();
        self.stay_within_budget(core);
    }
}

/// Returns how many of the blocks are neighbours in one run, going up or down.
pub(super) fn stretch(len: usize, block_ref: impl Fn(usize) -> BlockRef) -> usize {
    let first = block_ref(0);
    let along = |step: i64| {
        let expected = |number: usize| i64::from(first.at) + step * number as i64;
        (1..len)
            .take_while(|n| {
                block_ref(*n).run == first.run && i64::from(block_ref(*n).at) == expected(*n)
            })
            .count()
            + 1
    };
    along(-1).max(along(1))
}
