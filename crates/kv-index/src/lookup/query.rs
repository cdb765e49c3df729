//! The question of a lookup.

use kv_blocks::SequenceHash;

/// A chain of blocks in a namespace, at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainQuery<'a> {
    /// The namespace's key.
    pub(crate) space: u64,
    pub(crate) hashes: &'a [SequenceHash],
    /// In nanoseconds: entries that expired before do not count.
    pub(crate) now: u64,
}

impl ChainQuery<'_> {
    /// Returns block `position` of the chain.
    #[inline]
    pub(super) fn block(&self, position: usize) -> ChainBlock {
        ChainBlock {
            space: self.space,
            hash: self.hashes[position].0,
            position,
        }
    }
}

/// One block of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainBlock {
    pub(super) space: u64,
    pub(super) hash: u64,
    pub(super) position: usize,
}

/// Targets and entries that a lookup credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreditSource {
    /// Trusted targets: their announced and their expected blocks.
    Trusted,
    /// Untrusted targets: their announced blocks.
    Announced,
    /// Untrusted targets: their expected blocks.
    Expected,
}
