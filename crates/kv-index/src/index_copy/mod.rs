//! A copy of the index's content, made run by run, and written as a snapshot afterwards.
//!
//! The runs are copied in pieces, under one short hold of the writer's lock each. A run that changes
//! later is copied again, and the last piece is copied together with the targets under one hold:
//! so the copy is the content at that instant, whatever happened in between. Ordering, selection and
//! encoding need no lock.
//!
//! **Invariant**: once [`CopyEnd`] is known, the latest copy of each run is the run at that instant.

mod write;

use std::{collections::HashMap, ops::Range, sync::Arc};

use kv_blocks::{EngineHash, Namespace, SequenceHash};

use crate::{
    copies::CountedBlock,
    namespaces::NamespaceId,
    snapshot::{HolderRecord, NameStretch, ParentLink, TargetRecord},
};

/// One run as it was copied; without blocks, its number was free.
#[derive(Clone, Debug)]
pub(crate) struct RunCopy {
    pub(crate) run: u32,
    pub(crate) space: NamespaceId,
    pub(crate) parent: Option<ParentLink>,
    pub(crate) depth: u32,
    /// Time of the last event for the run.
    pub(crate) touched: u64,
    hashes: Range<usize>,
    holders: Range<usize>,
    names: Range<usize>,
    engine: Range<usize>,
}

/// Copies of some runs, in a few arrays.
#[derive(Debug, Default)]
pub(crate) struct RunCopies {
    runs: Vec<RunCopy>,
    /// Runs whose numbers are free.
    freed: Vec<u32>,
    pub(crate) hashes: Vec<SequenceHash>,
    pub(crate) holders: Vec<HolderRecord>,
    pub(crate) names: Vec<NameStretch>,
    pub(crate) engine: Vec<EngineHash>,
    /// Namespaces of the runs, some of them several times.
    spaces: Vec<(NamespaceId, Arc<Namespace>)>,
    /// The counted blocks of some slots.
    counted: Vec<(u32, Vec<CountedBlock>)>,
}

/// Lengths of the arrays before a run is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyStart([usize; 4]);

/// The identity of a run that is being copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunIdentity {
    pub(crate) run: u32,
    pub(crate) space: NamespaceId,
    pub(crate) parent: Option<ParentLink>,
    pub(crate) depth: u32,
    pub(crate) touched: u64,
}

impl RunCopies {
    /// Returns the start of a run's copy; its hashes, holders and names are appended next.
    pub(crate) fn start(&self) -> CopyStart {
        CopyStart([
            self.hashes.len(),
            self.holders.len(),
            self.names.len(),
            self.engine.len(),
        ])
    }

    /// Completes the copy of a run. Returns the number of copied items.
    pub(crate) fn complete(&mut self, CopyStart(start): CopyStart, of: RunIdentity) -> usize {
        let CopyStart(end) = self.start();
        let [hashes, holders, names, engine] = std::array::from_fn(|at| start[at]..end[at]);
        let items = hashes.len() + 2 * holders.len() + names.len() + engine.len();
        self.runs.push(RunCopy {
            run: of.run,
            space: of.space,
            parent: of.parent,
            depth: of.depth,
            touched: of.touched,
            hashes,
            holders,
            names,
            engine,
        });
        items
    }

    /// Records that a run's number is free.
    pub(crate) fn add_freed(&mut self, run: u32) {
        self.freed.push(run);
    }

    /// Records the namespace of the next run.
    pub(crate) fn add_space(&mut self, id: NamespaceId, namespace: &Arc<Namespace>) {
        if self.spaces.last().is_none_or(|(last, _)| *last != id) {
            self.spaces.push((id, Arc::clone(namespace)));
        }
    }

    /// Records the counted blocks of a slot.
    pub(crate) fn add_counted(&mut self, slot: u32, blocks: Vec<CountedBlock>) {
        self.counted.push((slot, blocks));
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.freed.clear();
        self.hashes.clear();
        self.holders.clear();
        self.names.clear();
        self.engine.clear();
        self.spaces.clear();
        self.counted.clear();
    }
}

/// Everything beside the runs, at the instant of the last piece.
#[derive(Debug)]
pub(crate) struct CopyEnd {
    pub(crate) targets: Vec<TargetRecord>,
    /// Removals announced so far, by slot, of targets with counted blocks.
    pub(crate) removals: HashMap<u32, u64>,
    /// Distinct blocks with a holder.
    pub(crate) blocks: u64,
    /// Pairs of block and target.
    pub(crate) memberships: u64,
}

/// The copied runs so far.
#[derive(Debug, Default)]
pub(crate) struct IndexCopy {
    copies: RunCopies,
    /// Position of the latest copy of each run, plus one; 0 without one.
    latest: Vec<u32>,
    /// The namespace that each number stood for last.
    spaces: HashMap<NamespaceId, Arc<Namespace>>,
    /// The counted blocks of each slot.
    counted: HashMap<u32, Vec<CountedBlock>>,
}

impl IndexCopy {
    /// Adds a piece, which is empty afterwards.
    pub(crate) fn append(&mut self, piece: &mut RunCopies) {
        let CopyStart([hashes, holders, names, engine]) = self.copies.start();
        for run in piece.freed.drain(..) {
            self.set_latest(run, 0);
        }
        for copy in piece.runs.drain(..) {
            let moved = |range: Range<usize>, by: usize| range.start + by..range.end + by;
            let number = u32::try_from(self.copies.runs.len() + 1).unwrap_or(u32::MAX);
            self.set_latest(copy.run, number);
            self.copies.runs.push(RunCopy {
                hashes: moved(copy.hashes, hashes),
                holders: moved(copy.holders, holders),
                names: moved(copy.names, names),
                engine: moved(copy.engine, engine),
                ..copy
            });
        }
        self.copies.hashes.append(&mut piece.hashes);
        self.copies.holders.append(&mut piece.holders);
        self.copies.names.append(&mut piece.names);
        self.copies.engine.append(&mut piece.engine);
        self.spaces.extend(piece.spaces.drain(..));
        self.counted.extend(piece.counted.drain(..));
        piece.clear();
    }

    fn set_latest(&mut self, run: u32, number: u32) {
        let run = run as usize;
        if self.latest.len() <= run {
            self.latest.resize(run + 1, 0);
        }
        self.latest[run] = number;
    }

    fn latest(&self, run: u32) -> Option<&RunCopy> {
        let number = self.latest.get(run as usize)?.checked_sub(1)?;
        self.copies.runs.get(number as usize)
    }
}
