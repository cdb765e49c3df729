//! The memory budget: who goes when there is no room.
//!
//! What is only expected goes before what is known. Then the oldest run on which nothing hangs goes, so of every chain the
//! end before the front; its holders lose their credit for it, which is never wrong, only less.

use kv_blocks::SequenceHash;

use super::IndexState;
use crate::{
    lookup::SharedIndex,
    runs::TierSpan,
    table::{BlockRef, NoFreeLines},
};

/// How hard it is to find room for one stretch of blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EvictionEffort {
    /// How often something had to go for it.
    attempts: u32,
}

impl EvictionEffort {
    /// What of `rest` to make next: where a lot went and memory is still in pieces, shorter runs.
    pub(super) fn part<'a>(&self, rest: &'a [SequenceHash]) -> &'a [SequenceHash] {
        let most = (rest.len() >> (self.attempts / TRIES).min(usize::BITS - 1)).max(SHORT);
        &rest[..rest.len().min(most)]
    }
}

/// Tries after which half as many blocks are tried.
const TRIES: u32 = 4;
/// Blocks that take one line.
const SHORT: usize = 8;

impl IndexState {
    /// Bytes in use, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes() + self.reserve_extra()
    }

    pub(super) fn reserve_extra(&self) -> u64 {
        self.namespaces.bytes()
            // Many arrays that come and go: the allocator keeps about as much again of a quarter of them.
            + self.names.bytes() / 4 * 5
            + self.orphans.bytes()
            + self.speculative.bytes()
            + self.targets.copies_bytes()
    }

    /// Makes room for more blocks: of the promise `stamp`, for which nothing goes but older promises, or of what is
    /// announced. What is pinned stays.
    pub(super) fn make_room(
        &mut self,
        core: &SharedIndex,
        stamp: Option<u64>,
        room: &mut EvictionEffort,
    ) -> Result<(), NoFreeLines> {
        room.attempts += 1;
        let made =
            self.drop_oldest_speculation(core, stamp) || stamp.is_none() && self.shed_oldest(core);
        self.writer.other_bytes = self.reserve_extra();
        if made { Ok(()) } else { Err(NoFreeLines) }
    }

    /// Sheds until no more is in use than allowed, or nothing is left that may go. That is about as much as the last event
    /// brought, so it takes about as long.
    pub(super) fn stay_within_budget(&mut self, core: &SharedIndex) {
        self.writer.other_bytes = self.reserve_extra();
        while self.writer.over_budget(core) && self.drop_something(core) {
            self.writer.other_bytes = self.reserve_extra();
        }
    }

    /// Drops what is worth least; returns whether there was anything.
    fn drop_something(&mut self, core: &SharedIndex) -> bool {
        let before = self.reserve_extra();
        self.names.tidy();
        self.reserve_extra() < before
            || self.drop_oldest_speculation(core, None)
            || self.orphans.drop_oldest()
            || self.shed_oldest(core)
    }

    /// Returns whether something went.
    fn shed_oldest(&mut self, core: &SharedIndex) -> bool {
        let Some(run) = self.writer.oldest_leaf() else {
            return false;
        };
        let mut lost = Vec::new();
        let before = self.writer.blocks();
        let held = self.capture_all(core, run);
        let gone = &mut self.freed;
        self.writer
            .shed(core, run, &mut |span| lost.push(span), &mut |blocks| {
                gone.push(blocks)
            });
        self.shed += before - self.writer.blocks();
        held.into_iter()
            .for_each(|held| self.publish_changes(core, Some(held)));
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
            self.count(
                slot,
                tier as usize,
                -i64::from(end - start),
                -i64::from(at_all),
            );
            if tier == 0 {
                self.targets.copies(slot, |copies| {
                    if !copies.is_empty() {
                        (start..end).for_each(|at| copies.leave(BlockRef { run, at }));
                    }
                });
            }
        }
        self.settle();
        true
    }

    /// What was pinned may go like everything else.
    pub(super) fn release_pin(&mut self, core: &SharedIndex) {
        let gone = &mut self.freed;
        self.writer.unpin(core, &mut |blocks| gone.push(blocks));
        self.settle();
    }
}
