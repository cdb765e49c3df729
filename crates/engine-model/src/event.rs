//! What the engine publishes about its cache.

use std::sync::Arc;

use kv_blocks::{EngineHash, Tier};

/// One change of the cache, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Consecutive blocks became reusable in a tier.
    Stored {
        /// The blocks' names, in sequence order.
        hashes: Vec<EngineHash>,
        /// The block before the first one; `None` starts a sequence.
        parent: Option<EngineHash>,
        /// `hashes.len()` blocks of tokens; none where the request named its blocks.
        tokens: Vec<u32>,
        /// LoRA adapter by name.
        lora: Option<Arc<str>>,
        /// Cache salt, named only where the event starts a sequence.
        salt: Option<Arc<str>>,
        /// Where the blocks are.
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
