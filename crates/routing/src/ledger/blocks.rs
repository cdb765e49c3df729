//! The blocks of one sequence.

use std::sync::Arc;

use kv_blocks::SequenceHash;

/// The blocks of one sequence, as the ledger counts them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceBlocks {
    /// Sequence hashes; a prefix of them may be active already.
    pub(crate) chain: Option<Arc<[SequenceHash]>>,
    /// Distinguishes equal hashes of different namespaces.
    pub(crate) fingerprint: u64,
    /// Blocks that no other sequence can share: the partial one at the end, or all if the hashes
    /// are unknown.
    pub(crate) unshared: u64,
}

impl SequenceBlocks {
    /// Returns the number of all blocks.
    pub(crate) fn count(&self) -> u64 {
        self.unshared + self.chain.as_ref().map_or(0, |chain| chain.len() as u64)
    }
}
