//! The inputs of a policy: a request, and the state of every candidate.

use kv_blocks::Target;

use crate::{
    Affinity, MediumWeights, PrefixHolder, Rates, TargetLoad,
    survey::{CandidateOverlap, NamespacePrompt},
};

/// The inputs of a policy.
#[derive(Debug)]
pub(crate) struct PolicyInput<'a> {
    pub(crate) random: u64,
    pub(crate) affinity: Affinity,
    /// The holders of the prompt's beginning, from streams of whole prefixes; `None`: there are no
    /// such streams.
    pub(crate) prefix_holders: Option<&'a [PrefixHolder]>,
    /// Weight of cached prefixes; 0 balances load alone.
    pub(crate) overlap_weight: f64,
    pub(crate) medium_weights: MediumWeights,
    pub(crate) prompt_tokens: u32,
    /// At least 1.
    pub(crate) expected_output_tokens: f64,
    /// The prompt in the blocks of each namespace.
    pub(crate) prompts: Vec<NamespacePrompt>,
    /// Never empty.
    pub(crate) candidates: Vec<PolicyCandidate<'a>>,
    /// Cold work that new targets are credited with.
    pub(crate) newcomer_cold_tokens: f64,
}

/// One candidate as input of a policy.
#[derive(Debug)]
pub(crate) struct PolicyCandidate<'a> {
    pub(crate) overlap: CandidateOverlap<'a>,
    pub(crate) state: CandidateState,
}

impl PolicyCandidate<'_> {
    pub(crate) fn target(&self) -> Target {
        self.overlap.candidate.target
    }

    /// Returns the blocks of the prompt that are not active on the candidate.
    pub(crate) fn new_blocks(&self) -> u64 {
        self.state.blocks_after - self.state.load.decode_blocks
    }

    /// Returns the prompt tokens that it would have to compute with this request: its queue and the
    /// uncached part of the prompt.
    pub(crate) fn prefill_tokens_after(&self) -> u64 {
        self.state.load.queued_prefill_tokens + u64::from(self.overlap.uncached_tokens)
    }
}

/// The state of a candidate from the ledger and the learned rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateState {
    pub(crate) load: TargetLoad,
    /// Milliseconds until its queued prefills are computed.
    pub(crate) backlog_ms: f64,
    /// Recent mean of the backlog in milliseconds.
    pub(crate) mean_backlog_ms: f64,
    /// Context tokens of its generating sequences.
    pub(crate) decode_tokens: u64,
    /// Prefill time recently given to it, in milliseconds.
    pub(crate) work_ms: f64,
    /// Uncached tokens recently given to it.
    pub(crate) cold_tokens: f64,
    /// Number of the latest reservation there; 0 if there was none.
    pub(crate) last_dispatch: u64,
    /// Active blocks if this prompt joined them.
    pub(crate) blocks_after: u64,
    pub(crate) rates: Rates,
    /// Recent mean time to first token of its worker, in milliseconds.
    pub(crate) first_token_ms: Option<f64>,
    /// Share of its worker's requests of the last minute that it took.
    pub(crate) health: f64,
}

/// Tokens that engines mix into one step.
const STEP_TOKENS: u32 = 8192;

impl CandidateState {
    /// Returns the time that the sequences generating there take from a prefill of this many
    /// tokens, step by step.
    pub(crate) fn interleave_ms(&self, uncached_tokens: u32) -> f64 {
        let step_ms = self
            .rates
            .step_ms(self.load.decode_sequences, self.decode_tokens);
        f64::from(uncached_tokens.div_ceil(STEP_TOKENS)) * step_ms
    }
}
