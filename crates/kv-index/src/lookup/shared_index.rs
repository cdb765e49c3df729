//! The structure that readers and the writer share.

use kv_blocks::{DpRank, Target, WorkerId};

use crate::{
    arena::LineChunks,
    atomic::{AtomicU32, AtomicU64, Ordering},
    runs::{MAX_SLOTS, RunHeads},
    table::BlockTable,
};

/// Number of remembered depths at which prompts diverge most often.
pub(crate) const KNOWN_ENDS: usize = 3;

/// Data shared by readers and the writer.
#[derive(Debug)]
pub(crate) struct SharedIndex {
    pub(crate) heads: RunHeads,
    pub(crate) body: LineChunks,
    /// All blocks.
    pub(crate) table: BlockTable,
    /// The first block of every run, and those at the ends of prompts: so few that they stay in the
    /// cache.
    pub(crate) marks: BlockTable,
    /// Depths at which prompts diverge most often (the ends of system prompts); 0 for none. Only a
    /// hint for the first probes.
    pub(crate) ends: [AtomicU32; KNOWN_ENDS],
    /// Words of slot bits that are in use.
    pub(crate) width: AtomicU64,
    /// The target of each slot, eight to a line; 0 while it has none.
    targets: LineChunks,
    /// Changes whenever a slot gets a target or loses it.
    pub(crate) assignments: AtomicU64,
    /// Bits of slots with untrusted targets, and their number.
    pub(crate) untrusted: Box<[AtomicU64]>,
    pub(crate) doubts: AtomicU64,
}

/// Lines of targets that are added at once, as a power of two.
const TARGETS_LOG2: u32 = 3;

impl SharedIndex {
    pub(crate) fn new(
        heads: RunHeads,
        body: LineChunks,
        table: BlockTable,
        marks: BlockTable,
    ) -> Self {
        let targets = LineChunks::new(MAX_SLOTS as usize >> (3 + TARGETS_LOG2), TARGETS_LOG2);
        Self {
            heads,
            body,
            table,
            marks,
            targets,
            assignments: AtomicU64::new(0),
            ends: std::array::from_fn(|_| AtomicU32::new(0)),
            width: AtomicU64::new(1),
            untrusted: (0..MAX_SLOTS / 64).map(|_| AtomicU64::new(0)).collect(),
            doubts: AtomicU64::new(0),
        }
    }

    /// Abandons the structure: lookups credit no target from now on and do not wait for the writer.
    pub(crate) fn abandon(&self) {
        self.heads.abandon();
        self.width.store(0, Ordering::Relaxed);
    }

    /// Assigns a slot to a target. For the writer.
    pub(crate) fn assign(&self, slot: u32, target: Target) {
        if self.targets.line(slot / 8).is_none() {
            self.targets.add((slot >> (3 + TARGETS_LOG2)) as usize);
        }
        self.name(
            slot,
            1 << 63 | u64::from(target.worker.0) << 31 | u64::from(target.rank.0 & 0x7fff_ffff),
        );
        let width = u64::from(slot) / 64 + 1;
        if self.width.load(Ordering::Relaxed) < width {
            self.width.store(width, Ordering::Release);
        }
    }

    /// Removes the target of a slot. For the writer.
    pub(crate) fn unassign(&self, slot: u32) {
        self.name(slot, 0);
    }

    fn name(&self, slot: u32, target: u64) {
        if let Some(line) = self.targets.line(slot / 8) {
            line[slot as usize % 8].store(target, Ordering::Release);
        }
        self.assignments.fetch_add(1, Ordering::Release);
    }

    /// Returns the target of a slot.
    pub(crate) fn target(&self, slot: u32) -> Option<Target> {
        let word = self.targets.line(slot / 8)?[slot as usize % 8].load(Ordering::Acquire);
        let (worker, rank) = ((word >> 31) as u32, word as u32 & 0x7fff_ffff);
        (word != 0).then_some(Target {
            worker: WorkerId(worker),
            rank: DpRank(rank),
        })
    }

    /// Sets whether a slot's target is untrusted. For the writer.
    pub(crate) fn set_untrusted(&self, slot: u32, doubted: bool) {
        let (word, bit) = (&self.untrusted[slot as usize / 64], 1 << (slot % 64));
        let now = word.load(Ordering::Relaxed);
        word.store(
            if doubted { now | bit } else { now & !bit },
            Ordering::Relaxed,
        );
        let doubts = self.doubts.load(Ordering::Relaxed);
        self.doubts.store(
            if doubted { doubts + 1 } else { doubts - 1 },
            Ordering::Release,
        );
    }

    /// Calls back with every word of the bits of untrusted targets.
    #[inline]
    pub(super) fn doubted(&self, mut visit: impl FnMut(usize, u64)) {
        if self.doubts.load(Ordering::Acquire) == 0 {
            return;
        }
        let width = self.width.load(Ordering::Acquire) as usize;
        for (number, word) in self.untrusted.iter().take(width).enumerate() {
            visit(number, word.load(Ordering::Relaxed));
        }
    }
}
