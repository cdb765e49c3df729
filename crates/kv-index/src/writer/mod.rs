//! The writer of the structure; there is one at a time, behind the index's lock.
//!
//! Changes of one run (its head, its hashes, its area) are between `RunHeads::begin` and
//! `RunHeads::end`; in between, readers of that run wait or start over. Table entries of new blocks
//! are added after the run has the blocks, those of freed blocks are removed before: a reader that
//! follows an entry compares the hash in any case.
//!
//! The writer's own data (children, age, free lines) is never read without the lock.

#![allow(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of words, and numbers of blocks fit 32 bits"
)]

#[cfg(test)]
mod check;
mod cover;
mod forks;
mod restore;
mod runs;
mod speculative;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    arena::{Extents, LINE_BYTES, LINE_WORDS},
    atomic::Ordering,
    lookup::SharedIndex,
    namespaces::NamespaceId,
    runs::{Holders, MAX_RUNS, RunHead},
    table::{BlockRef, NoFreeLines, NotInserted, TableEntry, TableFill},
    writer::forks::Forks,
};

#[cfg(test)]
pub(crate) use self::check::HeldBlocks;
pub(crate) use self::{cover::CoverChange, runs::FreedBlocks};

/// The writer's data on a run.
#[derive(Clone, Copy, Debug, Default)]
struct RunNode {
    /// Runs that hang on this one.
    children: u32,
    /// Lines of its hashes.
    lines: u32,
    /// Time of the last event for it, counted in touched runs since the start.
    touched: u64,
    /// Its blocks without a holder.
    unheld: u32,
    space: Option<NamespaceId>,
}

/// Holder of the blocks of a new run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunHolder {
    Confirmed { slot: u32, tier: u32 },
    Expected { slot: u32, expires: u64, stamp: u64 },
}

/// A namespace in the form that runs use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunNamespace {
    pub(crate) key: u64,
    pub(crate) id: NamespaceId,
}

/// State of the writer.
#[derive(Debug)]
pub(crate) struct TreeWriter {
    extents: Extents,
    fill: TableFill,
    marks: TableFill,
    nodes: Vec<RunNode>,
    free_runs: Vec<u32>,
    /// Number of runs that hang on `(run, attach)`.
    children: BTreeMap<(u32, u32), u32>,
    /// Marked blocks other than the first ones of runs: run and block.
    ends: BTreeSet<(u32, u32)>,
    forks: Forks,
    holders: Holders,
    /// Maximum bytes of heads and body together with everything else.
    limit: u64,
    /// Bytes of everything else, as last reported.
    pub(crate) other_bytes: u64,
    clock: u64,
    /// Position of the search for a run to shed.
    hand: usize,
    blocks: u64,
    /// Blocks without a holder.
    unheld: u64,
    /// Blocks that are not expected any more: stamp and number of blocks. The caller takes them.
    pub(crate) dropped: Vec<(u64, u32)>,
    /// A block of a run that stays even without a holder: the current change builds on it.
    pin: Option<BlockRef>,
    /// Whether the pin has preserved a block that would have been freed.
    pin_kept: bool,
}

impl TreeWriter {
    pub(crate) fn new(core: &SharedIndex, limit: u64) -> Self {
        Self {
            extents: Extents::new(core.body.log2()),
            fill: TableFill::new(&core.table),
            marks: TableFill::new(&core.marks),
            nodes: Vec::new(),
            free_runs: Vec::new(),
            children: BTreeMap::new(),
            ends: BTreeSet::new(),
            forks: Forks::default(),
            holders: Holders::default(),
            limit,
            other_bytes: 0,
            clock: 0,
            hand: 0,
            blocks: 0,
            unheld: 0,
            dropped: Vec::new(),
            pin: None,
            pin_kept: false,
        }
    }

    /// Pins a block, and with it all blocks before it, in place of the one pinned before.
    pub(crate) fn pin(&mut self, spot: Option<BlockRef>) {
        self.pin = spot;
    }

    /// Ends the pin; frees the blocks that stayed only for it.
    pub(crate) fn unpin(&mut self, core: &SharedIndex, gone: &mut dyn FnMut(FreedBlocks)) {
        let pin = self.pin.take();
        if std::mem::take(&mut self.pin_kept)
            && let Some(BlockRef { run, .. }) = pin
        {
            self.release(core, run, gone);
        }
    }

    fn is_pinned(&self, run: u32) -> bool {
        self.pin.is_some_and(|pin| pin.run == run)
    }

    /// Returns the number of distinct blocks in the structure.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of distinct blocks with a holder.
    pub(crate) fn held_blocks(&self) -> u64 {
        self.blocks - self.unheld
    }

    /// Records the number of a run's blocks without a holder.
    fn note_unheld(&mut self, run: u32, unheld: u32) {
        let before = std::mem::replace(&mut self.nodes[run as usize].unheld, unheld);
        self.unheld = self.unheld - u64::from(before) + u64::from(unheld);
    }

    /// Returns the maximum number of runs so far; numbers below may be free.
    pub(crate) fn runs(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Returns the namespace of a run; `None` while its number is free.
    pub(crate) fn space(&self, run: u32) -> Option<NamespaceId> {
        self.nodes.get(run as usize)?.space
    }

    /// Returns the bytes in use by blocks, holders, table and the writer's maps.
    pub(crate) fn bytes(&self) -> u64 {
        let nodes = (self.nodes.len() - self.free_runs.len()) * size_of::<RunNode>();
        self.extents.used() * LINE_BYTES + nodes as u64 + self.places()
    }

    /// Returns the bytes of the maps of positions in runs.
    fn places(&self) -> u64 {
        self.children.len() as u64 * KID_BYTES + self.ends.len() as u64 * END_BYTES
    }

    /// Returns the bytes taken from the system permanently.
    fn committed(&self, core: &SharedIndex) -> u64 {
        let body = (self.extents.chunks() as u64) << core.body.log2();
        let nodes =
            (self.nodes.capacity() * size_of::<RunNode>() + self.free_runs.capacity() * 4) as u64;
        body * LINE_BYTES + nodes + self.places() + self.extents.own_bytes() + self.other_bytes
    }

    /// Returns whether the budget is exceeded, because other data beside the structure has grown.
    pub(crate) fn over_budget(&self, core: &SharedIndex) -> bool {
        self.committed(core) > self.limit && self.bytes() + self.other_bytes > self.limit
    }

    /// Takes lines for an array, an area or a segment.
    fn take(&mut self, core: &SharedIndex, lines: u32) -> Result<u32, NoFreeLines> {
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

    fn grow_body(&mut self, core: &SharedIndex) -> Result<(), NoFreeLines> {
        let more = LINE_BYTES << core.body.log2();
        if self.extents.chunks() >= core.body.most()
            || self.committed(core) + more + self.to_come(core) > self.limit
        {
            return Err(NoFreeLines);
        }
        self.extents.grow(&core.body);
        Ok(())
    }

    /// Takes a number for a new run.
    fn take_run(&mut self, core: &SharedIndex) -> Result<u32, NoFreeLines> {
        if let Some(run) = self.free_runs.pop() {
            return Ok(run);
        }
        let run = self.nodes.len() as u32;
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
        self.nodes.push(RunNode::default());
        Ok(run)
    }

    #[inline]
    fn insert(
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

    /// Marks a block for searches.
    fn mark(&mut self, core: &SharedIndex, entry: TableEntry) -> Result<(), NoFreeLines> {
        loop {
            let Self { marks, extents, .. } = self;
            match core
                .marks
                .insert(marks, &core.body, extents, entry, |_| false)
            {
                Err(NotInserted::NoRoom) => self.grow_body(core)?,
                _ => return Ok(()),
            }
        }
    }

    fn unmark(&mut self, core: &SharedIndex, entry: TableEntry) {
        core.marks
            .remove(&mut self.marks, &core.body, &mut self.extents, entry);
    }

    /// Marks a block as the end of a prompt. The mark is only a hint, so it is skipped if there is
    /// no room.
    fn mark_end(&mut self, core: &SharedIndex, space: u64, spot: BlockRef) {
        let BlockRef { run, at } = spot;
        if at == 0
            || self.ends.contains(&(run, at))
            || self.committed(core) + END_BYTES > self.limit
        {
            return;
        }
        let key = core.marks.key(space, self.hash(core, spot));
        if self.mark(core, TableEntry { key, spot }).is_ok() {
            self.ends.insert((run, at));
        }
    }

    /// Unmarks the ends of prompts among the blocks of a run from `from` on.
    fn unmark_ends(&mut self, core: &SharedIndex, space: u64, run: u32, from: u32) {
        while let Some((run, at)) = self
            .ends
            .range((run, from)..=(run, u32::MAX))
            .next_back()
            .copied()
        {
            let spot = BlockRef { run, at };
            let key = core.marks.key(space, self.hash(core, spot));
            self.ends.remove(&(run, at));
            self.unmark(core, TableEntry { key, spot });
        }
    }

    fn touch(&mut self, run: u32) {
        self.clock += 1;
        self.nodes[run as usize].touched = self.clock;
    }

    /// Returns a run to shed: the oldest of a few dozen without children or a pin.
    pub(crate) fn oldest_leaf(&mut self) -> Option<u32> {
        let mut oldest: Option<(u64, u32)> = None;
        let mut seen = 0;
        for _ in 0..self.nodes.len() {
            self.hand = (self.hand + 1) % self.nodes.len();
            let node = &self.nodes[self.hand];
            if node.space.is_none() || node.children > 0 || self.is_pinned(self.hand as u32) {
                continue;
            }
            if oldest.is_none_or(|(touched, _)| node.touched < touched) {
                oldest = Some((node.touched, self.hand as u32));
            }
            seen += 1;
            if seen == SAMPLE {
                break;
            }
        }
        oldest.map(|(_, run)| run)
    }

    /// Returns the hash of an existing block.
    pub(crate) fn hash(&self, core: &SharedIndex, spot: BlockRef) -> u64 {
        let head = core.heads.get(&core.body, spot.run);
        hashes(core, &head)[spot.at as usize].load(Ordering::Relaxed)
    }

    /// Returns the hashes of a run's blocks.
    pub(crate) fn hashes_of<'a>(
        &self,
        core: &'a SharedIndex,
        run: u32,
    ) -> impl Iterator<Item = u64> + use<'a> {
        let head = core.heads.get(&core.body, run);
        hashes(core, &head)
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
    }

    /// Returns the position of a block by its hash.
    pub(crate) fn find(&self, core: &SharedIndex, space: u64, hash: u64) -> Option<BlockRef> {
        let key = core.table.key(space, hash);
        let mut head = RunHead::NONE;
        core.table.find(&core.body, key, |spot| {
            core.block_at(space, hash, spot, &mut head).then_some(spot)
        })
    }
}

/// Number of runs among which the oldest is shed.
const SAMPLE: usize = 64;
/// Estimated bytes of a branch in the map of children, its share of free capacity included.
const KID_BYTES: u64 = 24;
/// Estimated bytes of the end of a prompt.
const END_BYTES: u64 = 16;

fn hashes<'a>(core: &'a SharedIndex, head: &RunHead) -> &'a [crate::atomic::AtomicU64] {
    core.body
        .words(head.hashes(), head.blocks() as usize)
        .expect("the writer knows where hashes are")
}
