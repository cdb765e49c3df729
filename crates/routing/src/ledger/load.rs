//! The load that a dispatch adds to a target.

use kv_blocks::Target;

use super::SequenceBlocks;
use crate::{PromptKnowledge, ReplyMode};

/// The load that a dispatch adds to a target.
#[derive(Debug)]
pub(crate) struct DispatchLoad {
    pub(crate) target: Target,
    pub(crate) prompt_tokens: u32,
    pub(crate) uncached_tokens: u32,
    /// Estimated time to compute the uncached tokens.
    pub(crate) prefill_ms: f64,
    /// Estimated time that running sequences take from its prefill.
    pub(crate) interleave_ms: f64,
    pub(crate) blocks: SequenceBlocks,
    /// How the reply arrives, and with it whether its first token is seen.
    pub(crate) answer: ReplyMode,
    /// Whether the uncached tokens are an overlap's rest, or all tokens for want of a lookup.
    pub(crate) prompt: PromptKnowledge,
}
