//! One run's head: a line with everything that a lookup usually needs of it.

use crate::{
    arena::{LINE_WORDS, LineChunks, prefetch},
    atomic::{AtomicU32, AtomicU64, Ordering, fence, pause},
};

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

    fn version(&self) -> u32 {
        self.0[0] as u32
    }

    fn set_version(&mut self, version: u32) {
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

/// All heads: in slabs of lines that are never reused, so the version in a head's first word
/// continues when a run's number is used again.
#[derive(Debug)]
pub(crate) struct RunHeads {
    /// First line of each slab, plus one; 0 without a slab.
    slabs: Box<[AtomicU32]>,
    /// Heads per slab, as a power of two.
    log2: u32,
    /// 1 once a change was left incomplete; no reader may wait for its end.
    abandoned: AtomicU32,
}

impl RunHeads {
    /// Creates an empty set of at most `most` slabs of `1 << log2` heads.
    pub(crate) fn new(most: usize, log2: u32) -> Self {
        Self {
            slabs: (0..most).map(|_| AtomicU32::new(0)).collect(),
            log2,
            abandoned: AtomicU32::new(0),
        }
    }

    /// Returns the heads per slab.
    pub(crate) fn slab(&self) -> u32 {
        1 << self.log2
    }

    /// Returns the maximum number of heads.
    pub(crate) fn most(&self) -> u32 {
        (self.slabs.len() << self.log2)
            .try_into()
            .unwrap_or(u32::MAX)
    }

    /// Adds a slab of zeroed lines from `first` on, for runs from `run` on.
    pub(crate) fn add(&self, run: u32, first: u32) {
        self.slabs[(run >> self.log2) as usize].store(first + 1, Ordering::Release);
    }

    #[inline]
    fn find<'a>(&self, body: &'a LineChunks, run: u32) -> Option<&'a [AtomicU64; LINE_WORDS]> {
        let first = self
            .slabs
            .get((run >> self.log2) as usize)?
            .load(Ordering::Acquire)
            .checked_sub(1)?;
        body.line(first + (run & ((1 << self.log2) - 1)))
    }

    /// Copies a head as it was at one moment; returns whether the head exists.
    #[inline]
    pub(crate) fn read(&self, body: &LineChunks, run: u32, head: &mut RunHead) -> bool {
        let Some(line) = self.find(body, run) else {
            return false;
        };
        let mut round = 0;
        loop {
            let first = line[0].load(Ordering::Acquire);
            if first & 1 == 1 {
                if self.abandoned() {
                    return false;
                }
                pause(&mut round);
                continue;
            }
            head.0[0] = first;
            for (copy, word) in head.0.iter_mut().zip(line).skip(1) {
                *copy = word.load(Ordering::Relaxed);
            }
            // Pairs with the writer's release fence in `begin`: a reader that saw any of its words
            // sees the version too.
            fence(Ordering::Acquire);
            if line[0].load(Ordering::Relaxed) == first {
                return true;
            }
        }
    }

    /// Returns whether `run` is unchanged since `head`. Call after an acquire fence that follows
    /// all reads that depend on it.
    #[inline]
    pub(crate) fn unchanged(&self, body: &LineChunks, run: u32, head: &RunHead) -> bool {
        self.find(body, run)
            .is_some_and(|line| line[0].load(Ordering::Relaxed) == head.0[0])
    }

    #[inline]
    pub(crate) fn prefetch(&self, body: &LineChunks, run: u32) {
        if let Some(line) = self.find(body, run) {
            prefetch(line);
        }
    }

    /// Returns the head in the writer's view.
    #[inline]
    pub(crate) fn get(&self, body: &LineChunks, run: u32) -> RunHead {
        let mut head = [0; LINE_WORDS];
        for (copy, word) in head.iter_mut().zip(self.line(body, run)) {
            *copy = word.load(Ordering::Relaxed);
        }
        RunHead(head)
    }

    /// Starts a change of a run (its head, its hashes, its area): new readers wait, readers that
    /// have begun start over.
    #[inline]
    pub(crate) fn begin(&self, body: &LineChunks, run: u32) {
        let word = &self.line(body, run)[0];
        let now = word.load(Ordering::Relaxed);
        debug_assert!(now & 1 == 0, "changes do not nest");
        let odd = now & !0xffff_ffff | u64::from((now as u32).wrapping_add(1));
        word.store(odd, Ordering::Relaxed);
        // No store of the change itself may be visible before the odd version.
        fence(Ordering::Release);
    }

    /// Ends a change: the head becomes `head`, with the next version.
    #[inline]
    pub(crate) fn end(&self, body: &LineChunks, run: u32, head: &RunHead) {
        let line = self.line(body, run);
        let mut head = *head;
        head.set_version((line[0].load(Ordering::Relaxed) as u32).wrapping_add(1));
        debug_assert!(head.version() & 1 == 0, "begun before");
        for (word, new) in line.iter().zip(head.0).skip(1) {
            word.store(new, Ordering::Relaxed);
        }
        line[0].store(head.0[0], Ordering::Release);
    }

    /// Abandons the heads, perhaps between `begin` and `end`.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(1, Ordering::Relaxed);
    }

    /// Returns whether the heads are abandoned: then no reader waits for a change.
    pub(crate) fn abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed) == 1
    }

    fn line<'a>(&self, body: &'a LineChunks, run: u32) -> &'a [AtomicU64; LINE_WORDS] {
        self.find(body, run)
            .expect("the writer knows which runs there are")
    }
}
