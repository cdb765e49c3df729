//! The load that a dispatch adds to a target.

use std::sync::Arc;

use kv_blocks::{Namespace, SequenceHash};

use super::SequenceBlocks;
use crate::{PromptKnowledge, ReplyMode};

/// The load that a dispatch adds to a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DispatchLoad {
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Tokens to compute.
    pub uncached_tokens: u32,
    /// Estimated time to compute the uncached tokens.
    pub prefill_ms: f64,
    /// Estimated time that running sequences take from its prefill.
    pub interleave_ms: f64,
    /// Its blocks among the active ones.
    pub blocks: SequenceBlocks,
    /// How the reply arrives, and with it whether its first token is seen.
    pub reply: ReplyMode,
    /// Whether the uncached tokens are an overlap's rest, or all tokens for want of a lookup.
    pub prompt: PromptKnowledge,
    /// The blocks that the target is predicted to hold from now on, if it announces none: other
    /// replicas predict them as well. Set only while a router shares its load.
    pub predicted: Option<PredictedPrompt>,
}

/// Blocks that a target without events is predicted to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictedPrompt {
    /// The namespace of the blocks.
    pub namespace: Namespace,
    /// Their hashes; mostly the same list as that of the active blocks.
    pub chain: Arc<[SequenceHash]>,
}
