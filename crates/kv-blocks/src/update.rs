//! What one event says about one target's cache, whoever published it.

use std::sync::Arc;

use crate::{BlockSize, EngineHash, Tier};

/// A change of one target's cache. The target, and the model it serves, are known from the stream that carried it.
#[derive(Clone, Debug, PartialEq)]
pub enum IndexUpdate {
    /// Blocks became reusable.
    Stored(StoredBlocks),
    /// Blocks are gone from one tier.
    Removed(RemovedBlocks),
    /// The device tier was emptied.
    Cleared,
    /// Blocks that are known by name are in one more tier.
    Named(NamedBlocks),
}

/// Blocks of which only the names are said: placeholders of an offload tier, or of a store beside the engines.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedBlocks {
    /// What the engine calls the blocks; unknown ones are no error.
    pub hashes: Vec<EngineHash>,
    /// Where they are too.
    pub tier: Tier,
}

/// Consecutive blocks that became reusable.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredBlocks {
    /// What the engine calls the blocks, in sequence order.
    pub hashes: Vec<EngineHash>,
    /// The block before the first one; `None` starts a sequence.
    pub parent: Option<EngineHash>,
    /// `hashes.len() * block_size` tokens; the codec has checked the length.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// LoRA adapter by name.
    pub lora: Option<Arc<str>>,
    /// Cache salt. Publishers name it on the first block only: later blocks inherit their parent's.
    pub salt: Option<Arc<str>>,
    /// Where the blocks are.
    pub tier: Tier,
}

/// Blocks that are gone from one tier.
#[derive(Clone, Debug, PartialEq)]
pub struct RemovedBlocks {
    /// What the engine calls the blocks; unknown ones are no error.
    pub hashes: Vec<EngineHash>,
    /// The tier they left.
    pub tier: Tier,
}
