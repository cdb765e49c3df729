//! The load of a target, and what a dispatch adds to it.

use kv_blocks::Target;

use super::SequenceBlocks;
use crate::ReplyMode;

/// Load of one target, counted from our own decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLoad {
    /// Requests that were sent and are not done.
    pub in_flight: u32,
    /// Prompt tokens still to be computed, of requests without a first token.
    pub queued_prefill_tokens: u64,
    /// Sequences that have their first token.
    pub decode_sequences: u32,
    /// Blocks of all active sequences, shared prefixes counted once.
    pub decode_blocks: u64,
}

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
}
