//! Stores blocks by their engine hashes in a further tier.

use std::collections::HashSet;

use kv_blocks::{EngineHash, NamedBlocks, Target, Tier};

use super::{IndexState, budget::EvictionEffort, removing::stretch};
use crate::{
    UpdateOutcome,
    lookup::SharedIndex,
    medium_streams::StreamBlock,
    report::count,
    runs::{TierSpan, tier_number},
    table::{BlockRef, NoFreeLines},
};

/// Runs visited under one hold of the lock.
const RUNS: u32 = 1024;
/// Blocks found in them after which the lock is released earlier.
const RUN_BLOCKS: usize = 4096;

impl IndexState {
    /// Stores blocks that a target names by engine hashes in a tier. Hashes without a certain
    /// meaning are left out: the event has no other data about such a block.
    pub(crate) fn store_named(
        &mut self,
        core: &SharedIndex,
        target: Target,
        named: &NamedBlocks,
    ) -> UpdateOutcome {
        let Some(slot) = self.targets.find(target) else {
            return UpdateOutcome::applied(0, named.hashes.len());
        };
        self.note_update(slot);
        let mut room = EvictionEffort::default();
        let (mut applied, moved_before) = (0, self.counts.moved);
        let mut rest = &named.hashes[..];
        while !rest.is_empty() {
            let block_refs = self.named_block_refs(core, slot, rest);
            let mut full = None;
            let mut left = &block_refs[..];
            while let Some((at, _)) = left.first() {
                let length = stretch(left.len(), |at| left[at].1);
                let (mine, others) = left.split_at(length);
                if self.store_in_tier(core, slot, named, mine).is_err() {
                    full = Some(*at);
                    break;
                }
                applied += count(length);
                left = others;
            }
            let Some(at) = full else { break };
            // An eviction for room may drop found blocks.
            rest = &rest[at..];
            if self.make_room(core, None, &mut room).is_err() {
                self.counts.shed += rest.len() as u64;
                break;
            }
        }
        self.apply_effects();
        let moved = self.moved_since(moved_before);
        self.stay_within_budget(core);
        UpdateOutcome {
            moved,
            ..UpdateOutcome::applied(applied, named.hashes.len())
        }
    }

    /// Returns the certain meanings of a target's engine hashes: position of the hash, and block.
    fn named_block_refs(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        names: &[EngineHash],
    ) -> Vec<(usize, BlockRef)> {
        let mut found = Vec::new();
        self.names
            .resolve_any(slot, names, |at, _, resolved| found.push((at, resolved)));
        found.sort_unstable_by_key(|(at, _)| *at);
        found.retain(|(_, resolved)| {
            resolved.proven || self.writer.holds(core, resolved.block_ref, slot)
        });
        found
            .into_iter()
            .map(|(at, resolved)| (at, resolved.block_ref))
            .collect()
    }

    /// Returns the blocks that a target names: position of the name, and block.
    pub(crate) fn blocks_named(
        &mut self,
        core: &SharedIndex,
        target: Target,
        names: &[EngineHash],
    ) -> Vec<(usize, StreamBlock)> {
        let Some(slot) = self.targets.find(target) else {
            return Vec::new();
        };
        self.named_block_refs(core, slot, names)
            .into_iter()
            .map(|(at, block_ref)| {
                let space = core.heads.get(&core.body, block_ref.run).space();
                (at, (space, self.writer.hash(core, block_ref)))
            })
            .collect()
    }

    /// Returns those of the blocks that a target has in a tier.
    pub(crate) fn held_in(
        &mut self,
        core: &SharedIndex,
        (target, tier): (Target, Tier),
        blocks: &[StreamBlock],
    ) -> HashSet<StreamBlock> {
        let Some(slot) = self.targets.find(target) else {
            return HashSet::new();
        };
        let mut held = HashSet::new();
        for (space, hash) in blocks {
            let Some(block_ref) = self.writer.find(core, *space, *hash) else {
                continue;
            };
            self.writer.stretches(core, block_ref.run, slot, |span| {
                if span.tier == tier_number(tier) && (span.start..span.end).contains(&block_ref.at)
                {
                    held.insert((*space, *hash));
                }
            });
        }
        held
    }

    /// Returns blocks that a target has in a tier, of one namespace or of all, in some runs from `from`
    /// on; and the run to continue with.
    pub(crate) fn blocks_in_tier(
        &mut self,
        core: &SharedIndex,
        (target, tier): (Target, Tier),
        space: Option<u64>,
        from: u32,
    ) -> (Vec<StreamBlock>, Option<u32>) {
        let Some(slot) = self.targets.find(target) else {
            return (Vec::new(), None);
        };
        let end = self.writer.runs().min(from.saturating_add(RUNS));
        let mut blocks = Vec::new();
        for run in from..end {
            if blocks.len() >= RUN_BLOCKS {
                return (blocks, Some(run));
            }
            let mut spans = Vec::new();
            self.writer.stretches(core, run, slot, |span| {
                spans.extend((span.tier == tier_number(tier)).then_some(span.start..span.end))
            });
            if spans.is_empty() {
                continue;
            }
            let key = core.heads.get(&core.body, run).space();
            if space.is_none_or(|space| space == key) {
                let all = spans.into_iter().flatten();
                let hash = |at| self.writer.hash(core, BlockRef { run, at });
                blocks.extend(all.map(|at| (key, hash(at))));
            }
        }
        (blocks, (end < self.writer.runs()).then_some(end))
    }

    fn store_in_tier(
        &mut self,
        core: &SharedIndex,
        slot: u32,
        named: &NamedBlocks,
        block_refs: &[(usize, BlockRef)],
    ) -> Result<(), NoFreeLines> {
        let (Some((_, first)), Some((_, last))) = (block_refs.first(), block_refs.last()) else {
            return Ok(());
        };
        let span = TierSpan {
            slot,
            tier: tier_number(named.tier),
            start: first.at.min(last.at),
            end: first.at.max(last.at) + 1,
        };
        self.add_holder(core, first.run, span)
    }
}
