//! One open reservation.

use std::sync::Arc;

use kv_blocks::{Moment, Target, WorkerId};
use kv_index::SpeculationId;

use super::{DispatchLoad, active::NodeId, decode_clock::DecodeClock};
use crate::PromptKnowledge;

/// A first token is a sample of its worker's speed if at most this share of its time went to
/// concurrent sequences.
const INTERLEAVED_MOST: f64 = 0.5;

#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) target: Target,
    pub(super) load: Arc<DispatchLoad>,
    /// The end of its blocks among the active ones.
    pub(super) blocks_end: Option<NodeId>,
    pub(super) opened: Moment,
    /// No prefill was waiting when it was opened.
    pub(super) alone: bool,
    pub(super) decoding: bool,
    /// Its first token was reported; a prefill may also have ended by the estimate.
    pub(super) first_token: bool,
    /// The target's clock at the first token, if the sender of the request saw it.
    pub(super) decode_start: Option<DecodeClock>,
    /// Length of its reply, if the time of that is the time of its decode steps.
    pub(super) output_tokens: Option<u32>,
    /// The blocks that the index expects because of it.
    pub(super) speculation: SpeculationId,
}

impl Reservation {
    /// Returns the sample of the worker's speed if the prompt was computed in `ms` from the
    /// decision on. `None`: others were computed before it, most of the time went to other
    /// sequences, so that the remainder measures an estimate, or the cached part is unknown.
    pub(super) fn prefill_sample(&self, ms: f64) -> Option<PrefillSample> {
        let load = &self.load;
        let is_representative =
            load.interleave_ms <= INTERLEAVED_MOST * ms && load.prompt == PromptKnowledge::Blocks;
        (self.alone && is_representative).then(|| PrefillSample {
            start: load.prompt_tokens.saturating_sub(load.uncached_tokens),
            tokens: load.uncached_tokens,
            ms: (ms - load.interleave_ms).max(0.0),
        })
    }
}

/// What a reply showed of its worker's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedSample {
    /// The worker.
    pub worker: WorkerId,
    /// Time from the decision to the first token, if the sender of the request saw it.
    pub first_token_ms: Option<f64>,
    /// The prefill, if it did not wait for others.
    pub prefill: Option<PrefillSample>,
}

/// A prefill that did not wait for others: a sample of a worker's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillSample {
    /// Tokens that were cached already.
    pub start: u32,
    /// Tokens that were computed.
    pub tokens: u32,
    /// Its time.
    pub ms: f64,
}

/// The end of a prefill that its first token showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PrefillEnd {
    /// What it shows of the worker's speed, if the sender of the request saw it.
    pub(crate) sample: Option<SpeedSample>,
}
