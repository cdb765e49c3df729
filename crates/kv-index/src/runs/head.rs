//! One run's head: a line with everything that a lookup usually needs of it.

use crate::arena::LINE_WORDS;

/// Bits of a run's number.
pub(crate) const RUN_BITS: u32 = 25;
/// Maximum number of runs; as a number in a head it stands for none.
pub(crate) const MAX_RUNS: u32 = (1 << RUN_BITS) - 1;
/// No run: the parent of a run that begins a sequence.
pub(crate) const NO_RUN: u32 = u32::MAX;
/// Device holders in the head itself.
pub(crate) const INLINE_HOLDERS: usize = 4;
/// Maximum number of slots: 18 bits. Fewer for a checker, which keeps a history of every word.
pub(crate) const MAX_SLOTS: u32 = 1 << if cfg!(any(loom, shuttle)) { 9 } else { 18 };
/// Length of a holder of the whole run, however long it is.
pub(crate) const WHOLE: u32 = (1 << 14) - 1;

/// A consistent copy of a head.
///
/// Word 0: version (0..32), blocks (32..48), number of holders in the head (48..52), whether there
/// is an area (52), whether the run has children (53). 1: parent run (0..25), the parent's parent
/// (25..50), how many blocks of the parent come before (50..64). 2: depth of the first block
/// (0..32), first line of the hashes (32..64). 3: namespace key. 4: hash of the last block. 5, 6:
/// two holders each. 7: first line of the area (0..32), its words (32..64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunHead(pub(crate) [u64; LINE_WORDS]);

impl RunHead {
    /// No run.
    pub(crate) const NONE: Self = Self([0; LINE_WORDS]);

    #[inline]
    pub(crate) fn blocks(&self) -> u32 {
        (self.0[0] >> 32) as u32 & 0xffff
    }

    #[inline]
    pub(crate) fn inline_holders(&self) -> usize {
        (self.0[0] >> 48) as usize & 0xf
    }

    #[inline]
    pub(crate) fn has_area(&self) -> bool {
        self.0[0] >> 52 & 1 == 1
    }

    /// Returns whether the run has children.
    #[inline]
    pub(crate) fn has_children(&self) -> bool {
        self.0[0] >> 53 & 1 == 1
    }

    /// Returns the parent; `NO_RUN` for the first run of a sequence.
    #[inline]
    pub(crate) fn parent(&self) -> u32 {
        run_at(self.0[1])
    }

    /// Returns the parent's parent; `NO_RUN` without one.
    #[inline]
    pub(crate) fn grandparent(&self) -> u32 {
        run_at(self.0[1] >> RUN_BITS)
    }

    /// Returns how many blocks of the parent come before this run.
    #[inline]
    pub(crate) fn attach(&self) -> u32 {
        (self.0[1] >> (2 * RUN_BITS)) as u32
    }

    /// Returns the number of blocks before this run.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.0[2] as u32
    }

    /// Returns the first line of the block hashes.
    #[inline]
    pub(crate) fn hashes(&self) -> u32 {
        (self.0[2] >> 32) as u32
    }

    #[inline]
    pub(crate) fn space(&self) -> u64 {
        self.0[3]
    }

    /// Returns the hash of the last block.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.0[4]
    }

    /// Returns holder `number` of the head: slot, and the number of its blocks or `WHOLE`.
    #[inline]
    pub(crate) fn holder(&self, number: usize) -> (u32, u32) {
        unpack_part((self.0[5 + number / 2] >> (32 * (number % 2))) as u32)
    }

    #[inline]
    pub(crate) fn area(&self) -> (u32, usize) {
        (self.0[7] as u32, (self.0[7] >> 32) as usize)
    }

    pub(crate) fn set_blocks(&mut self, blocks: u32) {
        self.0[0] = self.0[0] & !(0xffff << 32) | u64::from(blocks) << 32;
    }

    pub(crate) fn set_children(&mut self, any: bool) {
        self.0[0] = self.0[0] & !(1 << 53) | u64::from(any) << 53;
    }

    pub(crate) fn set_parent(&mut self, run: u32, grandparent: u32, attach: u32) {
        let packed = |run: u32| u64::from(run.min(MAX_RUNS));
        self.0[1] =
            packed(run) | packed(grandparent) << RUN_BITS | u64::from(attach) << (2 * RUN_BITS);
    }

    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.0[2] = self.0[2] & !0xffff_ffff | u64::from(depth);
    }

    pub(crate) fn set_hashes(&mut self, line: u32) {
        self.0[2] = self.0[2] & 0xffff_ffff | u64::from(line) << 32;
    }

    /// Sets up to [`INLINE_HOLDERS`] holders in the head, and no area.
    pub(crate) fn set_inline(&mut self, parts: &[u32]) {
        self.0[0] = self.0[0] & !(0x1f << 48) | (parts.len() as u64) << 48;
        self.0[5] = 0;
        self.0[6] = 0;
        for (number, part) in parts.iter().enumerate() {
            self.0[5 + number / 2] |= u64::from(*part) << (32 * (number % 2));
        }
        self.0[7] = 0;
    }

    /// Sets an area for the holders.
    pub(crate) fn set_area(&mut self, line: u32, words: usize) {
        self.0[0] = self.0[0] & !(0x1f << 48) | 1 << 52;
        self.0[7] = u64::from(line) | (words as u64) << 32;
    }

    pub(super) fn version(&self) -> u32 {
        self.0[0] as u32
    }

    pub(super) fn set_version(&mut self, version: u32) {
        self.0[0] = self.0[0] & !0xffff_ffff | u64::from(version);
    }
}

/// Returns the run in the low bits of a word.
#[inline]
fn run_at(word: u64) -> u32 {
    let run = word as u32 & MAX_RUNS;
    if run == MAX_RUNS { NO_RUN } else { run }
}

/// Returns a device holder in 32 bits.
#[inline]
pub(crate) fn pack_part(slot: u32, blocks: u32) -> u32 {
    slot << 14 | blocks
}

#[inline]
pub(crate) fn unpack_part(part: u32) -> (u32, u32) {
    (part >> 14, part & WHOLE)
}
