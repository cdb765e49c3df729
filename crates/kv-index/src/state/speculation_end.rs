//! The end of speculative entries: expiry, pruning, withdrawal.

use super::{IndexState, SpeculationId};
use crate::lookup::SharedIndex;

/// Maximum blocks dropped under one hold of the lock.
const SLICE: u64 = 4096;

impl IndexState {
    /// Takes back the blocks of an entry that were neither renewed nor confirmed since.
    pub(crate) fn retract(&mut self, core: &SharedIndex, speculation: &SpeculationId) {
        self.drop_entry(core, speculation.generation, u64::MAX, u64::MAX);
    }

    /// Frees a slice of the expired entries and of those to prune. Returns whether there may be
    /// more.
    pub(crate) fn sweep_expired(&mut self, core: &SharedIndex, now: u64) -> bool {
        let mut room = SLICE;
        while room > 0
            && let Some(generation) = self.speculative.expired(now)
        {
            room = room.saturating_sub(self.drop_entry(core, generation, now, room).max(1));
        }
        self.prune(core, room);
        let names = self.names.tidy();
        room == 0 || self.speculative.pruning.is_some() || names
    }

    /// Drops the oldest entry that is older than `before`; returns whether there was one.
    pub(super) fn drop_oldest_speculation(
        &mut self,
        core: &SharedIndex,
        before: Option<u64>,
    ) -> bool {
        let oldest = self
            .speculative
            .oldest()
            .filter(|oldest| before.is_none_or(|generation| *oldest < generation));
        oldest.is_some_and(|generation| {
            self.drop_entry(core, generation, u64::MAX, u64::MAX);
            true
        })
    }

    /// Drops up to `most` blocks of an entry that are expired at `now`, from the end of its chain;
    /// returns how many.
    fn drop_entry(&mut self, core: &SharedIndex, generation: u64, now: u64, most: u64) -> u64 {
        let before = self.speculative.blocks();
        let mut ends: Option<u64> = None;
        for run in self.speculative.runs(generation).into_iter().rev() {
            let left = most.saturating_sub(before - self.speculative.blocks());
            if left == 0 {
                break;
            }
            let most = u32::try_from(left).unwrap_or(u32::MAX);
            let rest = self.writer.retract(core, run, (generation, now), most);
            ends = [ends, rest].into_iter().flatten().min();
            self.apply_effects();
        }
        let dropped = before - self.speculative.blocks();
        if dropped < most {
            // All of its runs were visited: if no block ends later, the entry is empty despite its
            // count.
            match ends {
                Some(ends) => self.speculative.extend(generation, ends),
                None => self.speculative.forget(generation),
            }
        }
        dropped
    }

    /// Drops up to `most` blocks of the entries to prune.
    fn prune(&mut self, core: &SharedIndex, most: u64) {
        let Some(left) = self.speculative.pruning else {
            return;
        };
        let mut room = most;
        while room > 0
            && let over = self.speculative.blocks().saturating_sub(left)
            && over > 0
            && let Some(oldest) = self.speculative.oldest()
        {
            room = room.saturating_sub(
                self.drop_entry(core, oldest, u64::MAX, over.min(room))
                    .max(1),
            );
        }
        if self.speculative.blocks() <= left {
            self.speculative.pruning = None;
        }
    }

    /// Returns the number of blocks that a pruning leaves.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a bound: a block more or less does not matter"
    )]
    fn prune_target(&self) -> u64 {
        let ratio = self.settings.prune_target_ratio.clamp(0.0, 1.0);
        (self.settings.prediction_max_blocks as f64 * ratio) as u64
    }

    /// Returns how many blocks may be expected in several entries before one of these is pruned for
    /// another.
    pub(crate) fn prediction_room(&self) -> u64 {
        let max = self.settings.prediction_max_blocks;
        let free = max.saturating_sub(self.speculative.blocks());
        free.max(self.prune_target())
    }

    /// Starts a pruning of the least recently used entries down to the target ratio, if an entry
    /// with `new` blocks exceeded the limit: the first slice now, the others with the next calls.
    pub(super) fn prune_for(&mut self, core: &SharedIndex, generation: u64, new: u64) {
        let max = self.settings.prediction_max_blocks;
        if self.speculative.blocks() <= max {
            return;
        }
        let left = self.prune_target();
        // The newest entry is not pruned for itself.
        self.speculative.pruning = Some(left.min(max.saturating_sub(new)) + new);
        self.prune(core, SLICE);
        while let Some(over) = self
            .speculative
            .blocks()
            .checked_sub(max)
            .filter(|over| *over > 0)
            && let Some(oldest) = self
                .speculative
                .oldest()
                .filter(|oldest| *oldest < generation)
        {
            self.drop_entry(core, oldest, u64::MAX, over);
        }
    }
}
