//! Changes of one target's cache, independent of the publisher.

use std::sync::Arc;

use crate::{BlockSize, EngineHash, MediaHash, Tier};

/// A change of one target's cache. The event stream determines the target and its model.
#[derive(Clone, Debug, PartialEq)]
pub enum IndexUpdate {
    /// Blocks became reusable.
    Stored(StoredBlocks),
    /// Blocks were removed from one tier.
    Removed(RemovedBlocks),
    /// The device tier was emptied.
    Cleared,
    /// Another tier was emptied: a store beside the engines has purged it.
    ClearedTier(Tier),
    /// Blocks that are known by their engine hashes are in one more tier.
    Named(NamedBlocks),
}

impl IndexUpdate {
    /// Returns the tier that changes.
    pub fn tier(&self) -> Tier {
        match self {
            Self::Stored(stored) => stored.tier,
            Self::Named(named) => named.tier,
            Self::Removed(removed) => removed.tier,
            Self::Cleared => Tier::Device,
            Self::ClearedTier(tier) => *tier,
        }
    }
}

/// Blocks given by their engine hashes only: placeholders of an offload tier, or of a store beside
/// the engines.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedBlocks {
    /// Engine hashes of the blocks; unknown ones are not an error.
    pub hashes: Vec<EngineHash>,
    /// The additional tier.
    pub tier: Tier,
}

/// Consecutive blocks that became reusable.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredBlocks {
    /// Engine hashes of the blocks, in sequence order.
    pub hashes: Vec<EngineHash>,
    /// The block before the first one; `None` starts a sequence.
    pub parent: Option<EngineHash>,
    /// `hashes.len() * block_size` tokens; the codec has checked the length.
    pub tokens: Vec<u32>,
    /// The multimodal items of each block; blocks behind the end of the list have none.
    pub media: Vec<Option<MediaHash>>,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// LoRA adapter by name.
    pub lora: Option<Arc<str>>,
    /// Cache salt. Publishers send it with the first block only; later blocks inherit it from their
    /// parent.
    pub salt: Option<Arc<str>>,
    /// The tier of the blocks.
    pub tier: Tier,
}

impl StoredBlocks {
    /// Returns the tokens and the multimodal items of each block.
    pub fn blocks(&self) -> impl Iterator<Item = (&[u32], Option<MediaHash>)> {
        let media = self.media.iter().copied().chain(std::iter::repeat(None));
        self.tokens.chunks_exact(self.block_size.len()).zip(media)
    }
}

/// Blocks that were removed from one tier.
#[derive(Clone, Debug, PartialEq)]
pub struct RemovedBlocks {
    /// Engine hashes of the blocks; unknown ones are not an error.
    pub hashes: Vec<EngineHash>,
    /// The tier that no longer holds them.
    pub tier: Tier,
}
