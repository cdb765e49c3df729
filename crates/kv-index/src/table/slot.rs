//! Keys and words of the table.

/// Maximum blocks of one run.
pub(crate) const RUN_BLOCKS: u32 = 1 << AT_BITS;
/// Number of lines for a key: its own, and seven further on.
pub(super) const DISTANCES: usize = 8;
/// Maximum keys that a line can count at one distance.
pub(super) const MOST_DISPLACED: u64 = 15;

const AT_BITS: u32 = 13;
pub(super) const POSITION_BITS: u32 = 22;
const DISPLACED_SHIFT: u32 = RUN_BITS + AT_BITS + POSITION_BITS;
const POSITION_SHIFT: u32 = RUN_BITS + AT_BITS;

pub(crate) use crate::engine_hashes::BlockRef;
use crate::runs::{MAX_RUNS, RUN_BITS};

/// A block and its namespace, mixed evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableKey(u64);

impl TableKey {
    /// No block.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(super) fn new(content: u64, secret: [u64; 2]) -> Self {
        let product = u128::from(content ^ secret[0]) * u128::from(secret[1] | 1);
        Self((product >> 64) as u64 ^ product as u64)
    }

    /// Returns the segment, of `1 << bits`.
    #[inline]
    pub(super) fn segment(self, bits: u32) -> usize {
        (self.0 >> (64 - bits)) as usize
    }

    /// Returns the position within the segment: a fraction of 22 bits.
    #[inline]
    pub(super) fn position(self, bits: u32) -> u32 {
        (self.0 << bits >> (64 - POSITION_BITS)) as u32
    }
}

/// A block with its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableEntry {
    pub(crate) key: TableKey,
    pub(crate) block_ref: BlockRef,
}

/// One word of the table.
///
/// Bits 0..25: run plus one, 0 while the slot is empty. 25..38: block of the run. 38..60: position.
/// 60..64: not of this slot, but of its line: in slot `d`, how many keys of this line are `d` lines
/// further on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableSlot(pub(super) u64);

impl TableSlot {
    pub(super) fn new(block_ref: BlockRef, position: u32) -> Self {
        debug_assert!(block_ref.run < MAX_RUNS && block_ref.at < RUN_BLOCKS);
        let at = u64::from(block_ref.at) << RUN_BITS;
        Self(u64::from(block_ref.run + 1) | at | u64::from(position) << POSITION_SHIFT)
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0 & ((1 << RUN_BITS) - 1) == 0
    }

    #[inline]
    pub(super) fn position(self) -> u32 {
        (self.0 >> POSITION_SHIFT) as u32 & ((1 << POSITION_BITS) - 1)
    }

    /// Returns whether the slot has an entry with this position.
    #[inline]
    pub(super) fn matches(self, position: u32) -> bool {
        self.position() == position && !self.is_empty()
    }

    #[inline]
    pub(super) fn block_ref(self) -> BlockRef {
        let run = (self.0 as u32 & ((1 << RUN_BITS) - 1)).wrapping_sub(1);
        BlockRef {
            run,
            at: (self.0 >> RUN_BITS) as u32 & ((1 << AT_BITS) - 1),
        }
    }

    #[inline]
    pub(super) fn displaced(self) -> u64 {
        self.0 >> DISPLACED_SHIFT
    }

    /// Returns the line's count of this word with the entry of `of`.
    pub(super) fn filled_with(self, of: Self) -> Self {
        Self(self.0 & (0xf << DISPLACED_SHIFT) | of.0)
    }

    /// Returns the line's count alone.
    pub(super) fn emptied(self) -> Self {
        Self(self.0 & (0xf << DISPLACED_SHIFT))
    }

    pub(super) fn with_displaced(self, change: i64) -> Self {
        Self(self.0.wrapping_add((change as u64) << DISPLACED_SHIFT))
    }

    /// Returns run, block and position: the slot's own fields.
    pub(super) fn own(self) -> u64 {
        self.0 & ((1 << DISPLACED_SHIFT) - 1)
    }
}
