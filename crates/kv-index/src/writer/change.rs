//! What a change of the tree takes, and its effects.

use kv_blocks::SequenceHash;

use crate::{
    namespaces::{NamespaceId, RunNamespace},
    runs::BlockRange,
    table::BlockRef,
};

/// Holder of the blocks of a new run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunHolder {
    Confirmed {
        slot: u32,
        tier: u32,
    },
    Expected {
        slot: u32,
        expires: u64,
        generation: u64,
    },
}

/// Consecutive blocks of a chain: known ones, or ones to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainPart<'a> {
    pub(crate) namespace: RunNamespace,
    /// The block before the first one; `None` begins a sequence.
    pub(crate) parent: Option<BlockRef>,
    pub(crate) hashes: &'a [SequenceHash],
}

/// Blocks that left the structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedBlocks {
    pub(crate) blocks: BlockRange,
    /// The namespace of a run that was freed as a whole.
    pub(crate) space: Option<NamespaceId>,
}

/// Effects of a change beside the structure. The caller takes them.
#[derive(Debug, Default)]
pub(crate) struct ChangeEffects {
    pub(crate) freed: Vec<FreedBlocks>,
    /// Blocks that are not expected any more: stamp and number of blocks.
    pub(crate) dropped: Vec<(u64, u32)>,
    /// The parts of the last covered span that its slot held there before.
    pub(crate) resident_ranges: Vec<(u32, u32)>,
}
