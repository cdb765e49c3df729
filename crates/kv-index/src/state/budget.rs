//! The memory budget: the order of eviction when there is no room.
//!
//! Unconfirmed entries are dropped first. Then the oldest run without children goes, so of every
//! chain the end before the front; its holders lose their credit for it, which is never wrong, only
//! less.

use kv_blocks::SequenceHash;

use super::IndexState;
use crate::{
    lookup::SharedIndex,
    runs::TierSpan,
    table::{BlockRef, NoFreeLines},
};

/// Effort so far to find room for one stretch of blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EvictionEffort {
    /// Number of evictions for it.
    attempts: u32,
}

impl EvictionEffort {
    /// Returns the part of `rest` to make next: after many evictions memory may be fragmented, so
    /// shorter runs.
    pub(super) fn part<'a>(&self, rest: &'a [SequenceHash]) -> &'a [SequenceHash] {
        let most = (rest.len() >> (self.attempts / TRIES).min(usize::BITS - 1)).max(SHORT);
        &rest[..rest.len().min(most)]
    }
}

/// Attempts after which half as many blocks are tried.
const TRIES: u32 = 4;
/// Chunks of cleared targets that are freed at once.
const CHUNKS: usize = 1024;
/// Blocks that take one line.
const SHORT: usize = 8;

impl IndexState {
    /// Returns the bytes in use, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes() + self.reserve_extra()
    }

    pub(super) fn reserve_extra(&self) -> u64 {
        self.namespaces.bytes()
            // Many short-lived arrays: the allocator retains about a quarter more.
            + self.names.bytes() / 4 * 5
            + self.orphans.bytes()
            + self.chunks.bytes()
            + self.speculative.bytes()
            + self.targets.copies_bytes()
    }

    /// Makes room for more blocks. With `generation`, the blocks of that speculative entry, for
    /// which only older entries are evicted; otherwise announced blocks. Pinned blocks stay.
    pub(super) fn make_room(
        &mut self,
        core: &SharedIndex,
        generation: Option<u64>,
        room: &mut EvictionEffort,
    ) -> Result<(), NoFreeLines> {
        room.attempts += 1;
        let made = self.drop_oldest_speculation(core, generation)
            || generation.is_none() && self.shed_oldest(core);
        self.writer.other_bytes = self.reserve_extra();
        if made { Ok(()) } else { Err(NoFreeLines) }
    }

    /// Sheds until the use is within the budget, or nothing evictable is left. That is about as
    /// much as the last event added, so it takes about as long.
    pub(super) fn stay_within_budget(&mut self, core: &SharedIndex) {
        self.writer.other_bytes = self.reserve_extra();
        while self.writer.over_budget(core) && self.drop_something(core) {
            self.writer.other_bytes = self.reserve_extra();
        }
    }

    /// Drops the least valuable content; returns whether there was any.
    fn drop_something(&mut self, core: &SharedIndex) -> bool {
        let before = self.reserve_extra();
        self.names.tidy();
        self.chunks.tidy(CHUNKS);
        self.reserve_extra() < before
            || self.drop_oldest_speculation(core, None)
            || self.orphans.drop_oldest()
            || self.shed_oldest(core)
            || self.forget_oldest_chunk(core)
    }

    /// Sheds the oldest run; returns whether there was one.
    fn shed_oldest(&mut self, core: &SharedIndex) -> bool {
        let Some(run) = self.writer.oldest_leaf() else {
            return false;
        };
        let mut lost = Vec::new();
        let before = self.writer.blocks();
        let captured = self.capture_all(core, run);
        self.writer.shed(core, run, |span| lost.push(span));
        self.counts.shed += before - self.writer.blocks();
        captured
            .into_iter()
            .for_each(|captured| self.publish_changes(core, Some(captured)));
        lost.sort_unstable_by_key(|span| (span.slot, span.start));
        let (mut holder, mut counted) = (None, 0);
        for TierSpan {
            slot,
            tier,
            start,
            end,
        } in lost
        {
            if holder.replace(slot) != Some(slot) {
                counted = 0;
            }
            let at_all = end.saturating_sub(start.max(counted));
            counted = counted.max(end);
            self.count(slot, tier, -i64::from(end - start), -i64::from(at_all));
            if tier == 0 {
                self.targets.copies(slot, |copies| {
                    if !copies.is_empty() {
                        (start..end).for_each(|at| copies.discard(BlockRef { run, at }));
                    }
                });
            }
        }
        self.apply_effects();
        true
    }

    /// Ends the pin; the block may be evicted like any other.
    pub(super) fn release_pin(&mut self, core: &SharedIndex) {
        self.writer.unpin(core);
        self.apply_effects();
    }
}
