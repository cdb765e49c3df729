//! The records of a snapshot.

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash, Namespace, SequenceHash, StreamPosition, Target, Tier};

use crate::table::RUN_BLOCKS;

/// Maximum blocks in one run.
pub(crate) const MAX_RUN_BLOCKS: usize = RUN_BLOCKS as usize;

/// A namespace and its number in the runs of the same snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceRecord {
    pub(crate) number: u32,
    pub(crate) namespace: Namespace,
}

/// A target and its slot in the holders of the same snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetRecord {
    pub(crate) slot: u32,
    pub(crate) target: Target,
    /// The registered model.
    pub(crate) model: Option<Arc<str>>,
    /// Size of its own blocks, as its events have shown it.
    pub(crate) block_size: Option<BlockSize>,
    /// Block sizes that it has announced.
    pub(crate) block_sizes: Vec<BlockSize>,
    /// Its membership of a hash group.
    pub(crate) member: Option<MemberRecord>,
    /// The batch of its stream up to which its blocks are known.
    pub(crate) position: Option<PositionRecord>,
}

/// A position in a target's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositionRecord {
    /// The batch up to which all updates are in the content.
    pub(crate) batch: StreamPosition,
    /// Whether the content may include updates of the next batch.
    pub(crate) within_next: bool,
}

/// A target's membership of a group of engines that give the same content the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberRecord {
    pub(crate) group: u32,
    /// Whether the group is the initial one of the model.
    pub(crate) common: bool,
    /// Whether another member's hashes have confirmed the membership.
    pub(crate) proven: bool,
}

/// A stretch of consecutive blocks, with its holders and engine hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunRecord<'a> {
    pub(crate) id: u32,
    /// [`NamespaceRecord::number`] of its namespace.
    pub(crate) space: u32,
    /// The position at which it continues another run of that namespace; `None` starts a chain.
    pub(crate) parent: Option<ParentLink>,
    /// Blocks in front of its first one.
    pub(crate) depth: u32,
    /// Its blocks' rolling hashes, 1 to [`MAX_RUN_BLOCKS`].
    pub(crate) hashes: &'a [SequenceHash],
    /// In a read snapshot: in the order of slot, tier and start, with no two for the same block in
    /// the same place.
    pub(crate) holders: &'a [HolderRecord],
    pub(crate) names: &'a [NameStretch],
    /// The engine hashes of all `names`, one stretch after the other.
    pub(crate) engine: &'a [EngineHash],
    /// Blocks that a holder has several times on its device, or whose credit is unbacked. In a read
    /// snapshot: in the order of slot and block, none twice.
    pub(crate) copies: &'a [CopyRecord],
}

impl<'a> RunRecord<'a> {
    /// Returns each stretch of named blocks with its engine hashes.
    pub(crate) fn named(&self) -> impl Iterator<Item = (NameStretch, &'a [EngineHash])> {
        let mut rest = self.engine;
        self.names.iter().map(move |stretch| {
            let (own, others) = rest.split_at(rest.len().min(stretch.count as usize));
            rest = others;
            (*stretch, own)
        })
    }
}

/// Position at which a run continues another one: behind the first `attach` blocks of `run`, at
/// least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParentLink {
    pub(crate) run: u32,
    pub(crate) attach: u32,
}

/// Blocks `start..end` of a run are held by the target of `slot` in `tier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HolderRecord {
    pub(crate) slot: u32,
    pub(crate) tier: Tier,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// How often the target of `slot` holds a block of a run on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CopyRecord {
    pub(crate) slot: u32,
    pub(crate) at: u32,
    /// Copies beside the first one.
    pub(crate) spare: u8,
    /// If its credit is unbacked: the number of further removals with which it ends.
    pub(crate) lapses_after: Option<u64>,
}

/// `count` consecutive blocks of a run, from block `at`, with engine hashes in `group`. A block
/// may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameStretch {
    pub(crate) group: u32,
    /// The block size of the announcement.
    pub(crate) size: BlockSize,
    pub(crate) at: u32,
    pub(crate) count: u32,
}

/// Number of records of each kind in a snapshot; its last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordCounts {
    pub(crate) spaces: u64,
    pub(crate) targets: u64,
    pub(crate) runs: u64,
    pub(crate) blocks: u64,
    pub(crate) holders: u64,
    pub(crate) names: u64,
    pub(crate) copies: u64,
}

/// First byte of every record.
pub(super) mod kind {
    pub(in crate::snapshot) const HEAD: u8 = 1;
    pub(in crate::snapshot) const SPACE: u8 = 2;
    pub(in crate::snapshot) const TARGET: u8 = 3;
    pub(in crate::snapshot) const RUN: u8 = 4;
    pub(in crate::snapshot) const HOLDERS: u8 = 5;
    pub(in crate::snapshot) const NAMES: u8 = 6;
    pub(in crate::snapshot) const COPIES: u8 = 7;
    pub(in crate::snapshot) const END: u8 = 8;
}
