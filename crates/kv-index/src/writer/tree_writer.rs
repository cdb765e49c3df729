//! The writer's data, its memory and its tables.

use std::collections::BTreeSet;

use super::{change::ChangeEffects, forks::Forks, run_nodes::RunNodes};
use crate::{
    arena::{Extents, LINE_BYTES, LINE_WORDS},
    atomic::Ordering,
    changed_runs::ChangedRuns,
    lookup::SharedIndex,
    namespaces::NamespaceId,
    runs::{Holders, MAX_RUNS, RunHead},
    table::{BlockRef, NoFreeLines, NotInserted, TableEntry, TableFill},
};

/// A block of a run that stays even without a holder: the current change builds on it.
#[derive(Debug, Default)]
pub(super) struct RunPin {
    pub(super) block_ref: Option<BlockRef>,
    /// Whether it has preserved a block that would have been freed.
    pub(super) preserved: bool,
}

impl RunPin {
    pub(super) fn is_in(&self, run: u32) -> bool {
        self.block_ref.is_some_and(|block_ref| block_ref.run == run)
    }

    /// Returns how many blocks of a run stay, of which `needed` are held or have a child.
    pub(super) fn retained_blocks(&mut self, run: u32, needed: u32) -> u32 {
        let block_ref = self.block_ref.filter(|block_ref| block_ref.run == run);
        let pinned = block_ref.map_or(0, |block_ref| block_ref.at + 1);
        self.preserved |= pinned > needed;
        needed.max(pinned)
    }
}

/// State of the writer.
#[derive(Debug)]
pub(crate) struct TreeWriter {
    pub(super) extents: Extents,
    pub(super) fill: TableFill,
    pub(super) marks: TableFill,
    /// Marked blocks other than the first ones of runs: run and block.
    pub(super) ends: BTreeSet<(u32, u32)>,
    pub(super) nodes: RunNodes,
    pub(super) forks: Forks,
    pub(super) holders: Holders,
    /// Maximum bytes of heads and body together with everything else.
    pub(super) limit: u64,
    /// Bytes of everything else, as last reported.
    pub(crate) other_bytes: u64,
    pub(super) blocks: u64,
    pub(super) pin: RunPin,
    pub(crate) effects: ChangeEffects,
    /// Runs with other blocks or holders than a save in progress has copied.
    pub(crate) changed: ChangedRuns,
}

impl TreeWriter {
    pub(crate) fn new(core: &SharedIndex, limit: u64) -> Self {
        Self {
            extents: Extents::new(core.body.log2()),
            fill: TableFill::new(&core.table),
            marks: TableFill::new(&core.marks),
            ends: BTreeSet::new(),
            nodes: RunNodes::default(),
            forks: Forks::default(),
            holders: Holders::default(),
            limit,
            other_bytes: 0,
            blocks: 0,
            pin: RunPin::default(),
            effects: ChangeEffects::default(),
            changed: ChangedRuns::default(),
        }
    }

    /// Pins a block, and with it all blocks before it, in place of the one pinned before.
    pub(crate) fn pin(&mut self, block_ref: Option<BlockRef>) {
        self.pin.block_ref = block_ref;
    }

    /// Ends the pin; frees the blocks that stayed only for it.
    pub(crate) fn unpin(&mut self, core: &SharedIndex) {
        let RunPin {
            block_ref,
            preserved,
        } = std::mem::take(&mut self.pin);
        if preserved && let Some(BlockRef { run, .. }) = block_ref {
            self.release(core, run);
        }
    }

    /// Returns the number of distinct blocks in the structure.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of distinct blocks with a holder.
    pub(crate) fn block_count(&self) -> u64 {
        self.blocks - self.nodes.unheld()
    }

    /// Returns the maximum number of runs so far; numbers below may be free.
    pub(crate) fn runs(&self) -> u32 {
        self.nodes.len()
    }

    /// Returns the namespace of a run; `None` while its number is free.
    pub(crate) fn space(&self, run: u32) -> Option<NamespaceId> {
        self.nodes.space(run)
    }

    /// Returns the time of the last event for a run; a higher number is later.
    pub(crate) fn touched(&self, run: u32) -> u64 {
        self.nodes.get(run).touched
    }

    /// Returns the bytes in use by blocks, holders, table and the writer's maps.
    pub(crate) fn bytes(&self) -> u64 {
        self.extents.used() * LINE_BYTES + self.nodes.bytes() + self.end_bytes()
    }

    fn end_bytes(&self) -> u64 {
        self.ends.len() as u64 * END_BYTES
    }

    /// Returns the bytes taken from the system permanently.
    pub(super) fn committed(&self, core: &SharedIndex) -> u64 {
        let body = (self.extents.chunks() as u64) << core.body.log2();
        let maps = self.nodes.committed() + self.end_bytes();
        body * LINE_BYTES + maps + self.extents.own_bytes() + self.other_bytes
    }

    /// Returns whether the budget is exceeded, because other data beside the structure has grown.
    pub(crate) fn over_budget(&self, core: &SharedIndex) -> bool {
        self.committed(core) > self.limit && self.bytes() + self.other_bytes > self.limit
    }

    /// Takes lines for an array, an area or a segment.
    pub(super) fn take(&mut self, core: &SharedIndex, lines: u32) -> Result<u32, NoFreeLines> {
        if let Some(start) = self.extents.take(&core.body, lines) {
            return Ok(start);
        }
        self.grow_body(core)?;
        self.extents.take(&core.body, lines).ok_or(NoFreeLines)
    }

    /// Returns the further bytes that everything else will need once the body is full, if it grows
    /// in proportion: lines are never given back, so it never gets more than the body leaves it
    /// now. Not estimated while there is little of either.
    fn to_come(&self, core: &SharedIndex) -> u64 {
        let body = (self.extents.chunks() as u64) << core.body.log2();
        let more = (body + (1 << core.body.log2())).saturating_sub(self.extents.used());
        if body * LINE_BYTES < self.limit / 4 {
            return 0;
        }
        let to_come = u128::from(self.other_bytes) * u128::from(more)
            / u128::from(self.extents.used().max(1));
        to_come.try_into().unwrap_or(u64::MAX)
    }

    pub(super) fn grow_body(&mut self, core: &SharedIndex) -> Result<(), NoFreeLines> {
        let more = LINE_BYTES << core.body.log2();
        if self.extents.chunks() >= core.body.most()
            || self.committed(core) + more + self.to_come(core) > self.limit
        {
            return Err(NoFreeLines);
        }
        self.extents.grow(&core.body);
        Ok(())
    }

    /// Enlarges the table for blocks to come, as far as there is room.
    pub(crate) fn reserve(&mut self, core: &SharedIndex, blocks: u64) {
        for number in 0..core.table.segments() {
            if self.reserve_segment(core, number, blocks).is_err() {
                // One more chunk is more than a segment takes.
                let grown = self.grow_body(core);
                if grown
                    .and_then(|()| self.reserve_segment(core, number, blocks))
                    .is_err()
                {
                    return;
                }
            }
        }
    }

    fn reserve_segment(
        &mut self,
        core: &SharedIndex,
        number: usize,
        blocks: u64,
    ) -> Result<(), NoFreeLines> {
        core.table
            .reserve(number, blocks, &core.body, &mut self.extents)
    }

    /// Takes a number for a new run.
    pub(super) fn take_run(&mut self, core: &SharedIndex) -> Result<u32, NoFreeLines> {
        if let Some(run) = self.nodes.take_free() {
            return Ok(run);
        }
        let run = self.nodes.len();
        if run >= core.heads.most().min(MAX_RUNS) {
            return Err(NoFreeLines);
        }
        let slab = core.heads.slab();
        if run.is_multiple_of(slab) {
            let first = self.take(core, slab)?;
            for word in core
                .body
                .words(first, slab as usize * LINE_WORDS)
                .expect("just taken")
            {
                word.store(0, Ordering::Relaxed);
            }
            core.heads.add(run, first);
        }
        self.nodes.add();
        Ok(run)
    }

    #[inline]
    pub(super) fn insert(
        &mut self,
        core: &SharedIndex,
        entry: TableEntry,
        known: impl Fn(BlockRef) -> bool,
    ) -> Result<(), NotInserted> {
        loop {
            let Self { fill, extents, .. } = self;
            match core.table.insert(fill, &core.body, extents, entry, &known) {
                Ok(()) => break,
                Err(NotInserted::NoRoom) => self
                    .grow_body(core)
                    .map_err(|NoFreeLines| NotInserted::NoRoom)?,
                Err(NotInserted::Known) => return Err(NotInserted::Known),
            }
        }
        self.blocks += 1;
        Ok(())
    }

    /// Returns a run to shed: the oldest of a few dozen without children or a pin.
    pub(crate) fn oldest_leaf(&mut self) -> Option<u32> {
        self.nodes
            .oldest_leaf(self.pin.block_ref.map(|block_ref| block_ref.run))
    }
}

/// Estimated bytes of the end of a prompt.
pub(super) const END_BYTES: u64 = 16;

pub(super) fn hashes<'a>(core: &'a SharedIndex, head: &RunHead) -> &'a [crate::atomic::AtomicU64] {
    core.body
        .words(head.hashes(), head.blocks() as usize)
        .expect("the writer knows where hashes are")
}

/// Returns the number of lines for a number of words.
pub(super) fn lines_of(words: usize) -> u32 {
    words.div_ceil(LINE_WORDS) as u32
}
