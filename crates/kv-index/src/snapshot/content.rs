//! Checked content of a snapshot, in a few large arrays.

use std::ops::Range;

use kv_blocks::{EngineHash, SequenceHash};

use super::{
    CopyRecord, HolderRecord, NameStretch, NamespaceRecord, ParentLink, RecordCounts, RunRecord,
    TargetRecord,
};

/// A whole snapshot. Every number in it refers to an existing item, parents come before children,
/// and every stretch lies inside its run.
///
/// It takes about the bytes of its file when runs are long, and at most some twelve times as much,
/// when there is little but namespaces and runs of one block.
#[derive(Debug, Default)]
pub(crate) struct SnapshotContent {
    pub(super) spaces: Vec<NamespaceRecord>,
    pub(super) targets: Vec<TargetRecord>,
    pub(super) runs: Vec<SnapshotRun>,
    pub(super) hashes: Vec<SequenceHash>,
    pub(super) holders: Vec<HolderRecord>,
    pub(super) names: Vec<NameStretch>,
    pub(super) engine: Vec<EngineHash>,
    pub(super) copies: Vec<CopyRecord>,
    pub(super) bytes: u64,
}

/// A run, as ranges of the arrays.
#[derive(Debug)]
pub(super) struct SnapshotRun {
    pub(super) id: u32,
    pub(super) space: u32,
    pub(super) parent: Option<ParentLink>,
    pub(super) depth: u32,
    pub(super) hashes: Range<usize>,
    pub(super) holders: Range<usize>,
    pub(super) names: Range<usize>,
    pub(super) engine: Range<usize>,
    pub(super) copies: Range<usize>,
}

impl SnapshotContent {
    /// Returns the namespaces; no two have the same number, no two are equal.
    pub(crate) fn spaces(&self) -> &[NamespaceRecord] {
        &self.spaces
    }

    /// Returns the targets; no two have the same slot, no two are the same target.
    pub(crate) fn targets(&self) -> &[TargetRecord] {
        &self.targets
    }

    /// Returns the runs, parents before children; no two have the same id.
    pub(crate) fn runs(&self) -> impl ExactSizeIterator<Item = RunRecord<'_>> {
        self.runs.iter().map(|run| RunRecord {
            id: run.id,
            space: run.space,
            parent: run.parent,
            depth: run.depth,
            hashes: &self.hashes[run.hashes.clone()],
            holders: &self.holders[run.holders.clone()],
            names: &self.names[run.names.clone()],
            engine: &self.engine[run.engine.clone()],
            copies: &self.copies[run.copies.clone()],
        })
    }

    /// Returns the bytes of the snapshot.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the numbers of blocks and of engine hashes.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        (self.hashes.len() as u64, self.engine.len() as u64)
    }

    pub(super) fn counts(&self) -> RecordCounts {
        RecordCounts {
            spaces: self.spaces.len() as u64,
            targets: self.targets.len() as u64,
            runs: self.runs.len() as u64,
            blocks: self.hashes.len() as u64,
            holders: self.holders.len() as u64,
            names: self.engine.len() as u64,
            copies: self.copies.len() as u64,
        }
    }
}
