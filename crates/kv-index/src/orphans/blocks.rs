//! Orphan blocks: by engine hashes, or by rolling hashes.

use kv_blocks::{EngineHash, Namespace, SequenceHash, StoredBlocks, Tier};

/// Blocks announced before their parent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OrphanBlocks {
    /// By engine hash, with their tokens.
    Named(StoredBlocks),
    /// Chunks, by their hashes, with their tokens.
    Chunks(StoredBlocks),
    /// By rolling hash.
    Hashed(HashKeyedBlocks),
}

/// Blocks of a namespace by their rolling hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HashKeyedBlocks {
    pub(crate) namespace: Namespace,
    /// The namespace's key.
    pub(crate) space: u64,
    /// The block before the first one.
    pub(crate) parent: Option<SequenceHash>,
    pub(crate) hashes: Vec<SequenceHash>,
    pub(crate) tier: Tier,
}

/// Scope in which a number stands for one block of a target: engine hashes of one block size, hashes
/// of chunks, or rolling hashes of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NumberScope {
    /// Engine hashes of blocks with this many tokens.
    Size(u32),
    /// Hashes of chunks, whatever their number of tokens.
    Chunks,
    /// Rolling hashes in the namespace with this key.
    Space(u64),
}

/// Scope without the block size, which removals do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NumberSet {
    /// Engine hashes.
    Names,
    /// Rolling hashes in the namespace with this key.
    Space(u64),
}

impl OrphanBlocks {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Named(stored) | Self::Chunks(stored) => stored.hashes.len(),
            Self::Hashed(hashed) => hashed.hashes.len(),
        }
    }

    /// Returns whether the blocks have a parent and would be valid.
    pub(super) fn is_sound(&self) -> bool {
        let fits = match self {
            Self::Named(stored) | Self::Chunks(stored) => {
                stored.tokens.len() == stored.hashes.len().saturating_mul(stored.block_size.len())
            }
            Self::Hashed(_) => true,
        };
        fits && self.len() > 0 && self.parent().is_some()
    }

    pub(super) fn parent(&self) -> Option<u64> {
        match self {
            Self::Named(stored) | Self::Chunks(stored) => stored.parent.map(|parent| parent.0),
            Self::Hashed(hashed) => hashed.parent.map(|parent| parent.0),
        }
    }

    /// Returns the number of block `at`.
    pub(super) fn number(&self, at: u32) -> u64 {
        match self {
            Self::Named(stored) | Self::Chunks(stored) => stored.hashes[at as usize].0,
            Self::Hashed(hashed) => hashed.hashes[at as usize].0,
        }
    }

    pub(super) fn tier(&self) -> Tier {
        match self {
            Self::Named(stored) | Self::Chunks(stored) => stored.tier,
            Self::Hashed(hashed) => hashed.tier,
        }
    }

    pub(super) fn scope(&self) -> NumberScope {
        match self {
            Self::Named(stored) => NumberScope::Size(stored.block_size.tokens()),
            Self::Chunks(_) => NumberScope::Chunks,
            Self::Hashed(hashed) => NumberScope::Space(hashed.space),
        }
    }

    pub(super) fn numbers(&self) -> NumberSet {
        match self {
            Self::Named(_) | Self::Chunks(_) => NumberSet::Names,
            Self::Hashed(hashed) => NumberSet::Space(hashed.space),
        }
    }

    /// Returns whether the blocks may be of `namespace`: blocks with engine hashes inherit adapter
    /// and salt from their parent.
    pub(super) fn may_be_of(&self, namespace: &Namespace) -> bool {
        match self {
            Self::Named(stored) | Self::Chunks(stored) => {
                let same_size = stored.block_size == namespace.block_size;
                (same_size || matches!(self, Self::Chunks(_)))
                    && (stored.lora.is_none() || stored.lora == namespace.lora)
                    && (stored.salt.is_none() || stored.salt == namespace.salt)
            }
            Self::Hashed(hashed) => hashed.namespace == *namespace,
        }
    }

    /// Returns blocks `start..end` as a store of their own.
    pub(super) fn piece(&self, start: u32, end: u32) -> Self {
        let parent = if start == 0 {
            self.parent()
        } else {
            Some(self.number(start - 1))
        };
        let range = start as usize..end as usize;
        match self {
            Self::Named(stored) | Self::Chunks(stored) => {
                let size = stored.block_size.len();
                let part = StoredBlocks {
                    hashes: stored.hashes[range.clone()].to_vec(),
                    parent: parent.map(EngineHash),
                    tokens: stored.tokens[range.start * size..range.end * size].to_vec(),
                    block_size: stored.block_size,
                    lora: stored.lora.clone(),
                    // The list ends at the last block with any.
                    media: stored
                        .media
                        .iter()
                        .take(range.end)
                        .skip(range.start)
                        .copied()
                        .collect(),
                    salt: stored.salt.clone(),
                    tier: stored.tier,
                };
                if matches!(self, Self::Named(_)) {
                    Self::Named(part)
                } else {
                    Self::Chunks(part)
                }
            }
            Self::Hashed(hashed) => Self::Hashed(HashKeyedBlocks {
                namespace: hashed.namespace.clone(),
                space: hashed.space,
                parent: parent.map(SequenceHash),
                hashes: hashed.hashes[range].to_vec(),
                tier: hashed.tier,
            }),
        }
    }

    pub(super) fn shrink_to_fit(&mut self) {
        match self {
            Self::Named(stored) | Self::Chunks(stored) => {
                stored.hashes.shrink_to_fit();
                stored.tokens.shrink_to_fit();
                stored.media.shrink_to_fit();
            }
            Self::Hashed(hashed) => hashed.hashes.shrink_to_fit(),
        }
    }

    /// Returns the bytes of tokens, multimodal items and texts.
    pub(super) fn own_bytes(&self) -> usize {
        let (texts, inputs) = match self {
            Self::Named(stored) | Self::Chunks(stored) => (
                [None, stored.lora.as_ref(), stored.salt.as_ref()],
                size_of_val(&stored.tokens[..]) + size_of_val(&stored.media[..]),
            ),
            Self::Hashed(HashKeyedBlocks { namespace, .. }) => (
                [
                    Some(&namespace.model),
                    namespace.lora.as_ref(),
                    namespace.salt.as_ref(),
                ],
                0,
            ),
        };
        texts
            .into_iter()
            .flatten()
            .map(|text| text.len())
            .sum::<usize>()
            + inputs
    }
}
