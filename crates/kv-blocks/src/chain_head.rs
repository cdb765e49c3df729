//! The part of a chain that a prompt has from an earlier one.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{BlockSize, HashScheme, SequenceHash};

/// The sequence hashes of a prompt's first blocks, computed for an earlier prompt with the same
/// tokens there.
#[derive(Clone, Debug)]
pub(crate) struct ChainHead {
    size: BlockSize,
    hashes: Arc<[SequenceHash]>,
    /// How many of the hashes hold for this prompt.
    blocks: usize,
}

impl ChainHead {
    /// Returns the part of a chain that depends on the first `tokens` tokens only.
    pub(crate) fn new(size: BlockSize, hashes: Arc<[SequenceHash]>, tokens: usize) -> Self {
        let blocks = hashes.len().min(tokens / size.len());
        Self {
            size,
            hashes,
            blocks,
        }
    }

    /// Returns the chain of all `tokens`.
    pub(crate) fn extended(&self, scheme: HashScheme, tokens: &[u32]) -> Arc<[SequenceHash]> {
        let head = &self.hashes[..self.blocks];
        let rest = &tokens[self.blocks * self.size.len()..];
        let rest = scheme.chain(head.last().copied(), rest, self.size);
        [head, &rest[..]].concat().into()
    }
}

/// Takes the head of the chain of blocks of `size` tokens.
pub(crate) fn take(heads: &Mutex<Vec<ChainHead>>, size: BlockSize) -> Option<ChainHead> {
    let mut heads = heads.lock().unwrap_or_else(PoisonError::into_inner);
    let at = heads.iter().position(|head| head.size == size)?;
    Some(heads.swap_remove(at))
}

/// Returns all heads, for a prompt that has only the first `tokens` tokens in common.
pub(crate) fn all(heads: &Mutex<Vec<ChainHead>>, tokens: usize) -> Vec<ChainHead> {
    let heads = heads.lock().unwrap_or_else(PoisonError::into_inner);
    let shorter = |head: &ChainHead| {
        let tokens = tokens.min(head.blocks * head.size.len());
        ChainHead::new(head.size, Arc::clone(&head.hashes), tokens)
    };
    heads.iter().map(shorter).collect()
}
