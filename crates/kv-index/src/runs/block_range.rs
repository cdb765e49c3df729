//! Consecutive blocks of a run.

use super::TierSpan;
use crate::engine_hashes::BlockRef;

/// Blocks `start..end` of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub(crate) run: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl BlockRange {
    /// Returns `count` blocks from `first` on.
    pub(crate) fn starting_at(first: BlockRef, count: u32) -> Self {
        Self {
            run: first.run,
            start: first.at,
            end: first.at + count,
        }
    }

    /// Returns the number of blocks.
    pub(crate) fn count(self) -> u32 {
        self.end - self.start
    }

    /// Returns the first block.
    pub(crate) fn first(self) -> BlockRef {
        BlockRef {
            run: self.run,
            at: self.start,
        }
    }

    /// Returns the last block; the range is not empty.
    pub(crate) fn last(self) -> BlockRef {
        BlockRef {
            run: self.run,
            at: self.end - 1,
        }
    }

    pub(crate) fn contains(self, block: BlockRef) -> bool {
        block.run == self.run && (self.start..self.end).contains(&block.at)
    }

    /// Returns the blocks as held by a slot in a tier.
    pub(crate) fn span_of(self, slot: u32, tier: u32) -> TierSpan {
        TierSpan {
            slot,
            tier,
            start: self.start,
            end: self.end,
        }
    }
}
