//! The engine's cache events.

use std::sync::Arc;

use kv_blocks::{EngineHash, Tier};

/// The identifiers of the multimodal items that a block has tokens of, each with the place of its
/// first token relative to the first token of the block.
pub type BlockMedia = Vec<(Arc<str>, i64)>;

/// One change of the cache. Events are ordered by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Consecutive blocks became reusable in a tier.
    Stored {
        /// The blocks' names, in sequence order.
        hashes: Vec<EngineHash>,
        /// The block before the first one; `None` starts a sequence.
        parent: Option<EngineHash>,
        /// `hashes.len()` blocks of tokens; empty if the request gave only the names of its blocks.
        tokens: Vec<u32>,
        /// LoRA adapter by name.
        lora: Option<Arc<str>>,
        /// Cache salt, present only if the event starts a sequence.
        salt: Option<Arc<str>>,
        /// The multimodal items of each block; empty if no block has any.
        media: Vec<BlockMedia>,
        /// The tier of the blocks.
        tier: Tier,
    },
    /// One copy of one block left a tier.
    Removed {
        /// The block's name.
        hash: EngineHash,
        /// The tier it left.
        tier: Tier,
    },
    /// The device tier was emptied.
    Cleared,
}
