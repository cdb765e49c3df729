//! The blocks of one sequence, and which of them can be shared.

use std::sync::Arc;

use kv_blocks::SequenceHash;

/// Blocks of one sequence that are compared with other sequences' blocks; later ones count as its own. It bounds the
/// time under the lock, at the price of counting shared blocks beyond it twice.
pub(super) const COMPARED_BLOCKS: usize = 4096;

/// The blocks of one sequence, as the ledger counts them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceBlocks {
    /// Sequence hashes; a prefix of them may be active already.
    pub(crate) chain: Option<Arc<[SequenceHash]>>,
    /// Tells equal hashes of different namespaces apart.
    pub(crate) fingerprint: u64,
    /// Blocks that no other sequence can share: the partial one at the end, or all when the hashes are unknown.
    pub(crate) unshared: u64,
}

impl SequenceBlocks {
    /// Hashes that are compared with other sequences'.
    pub(super) fn compared(&self) -> &[SequenceHash] {
        self.chain.as_deref().map_or(&[][..], |chain| &chain[..chain.len().min(COMPARED_BLOCKS)])
    }

    /// What they are known by.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.compared().iter().map(|hash| self.key(*hash))
    }

    /// Blocks in all.
    pub(crate) fn count(&self) -> u64 {
        self.unshared + self.chain.as_ref().map_or(0, |chain| chain.len() as u64)
    }

    /// What one hash is known by.
    pub(super) fn key(&self, hash: SequenceHash) -> u64 {
        hash.0 ^ self.fingerprint
    }

    /// Blocks that are counted without comparing.
    pub(super) fn uncompared(&self) -> u64 {
        let beyond = self.chain.as_ref().map_or(0, |chain| chain.len().saturating_sub(COMPARED_BLOCKS));
        self.unshared + beyond as u64
    }
}
