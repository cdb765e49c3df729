//! What the pool that computes prompts for others does for a request.

use std::sync::Arc;

use kv_blocks::Target;

use crate::{CacheSource, ReservationId};

/// The target that computes a prompt for another one, with its load already counted.
#[derive(Clone, Debug)]
pub struct PrefillLeg {
    /// The load of the prefill. End it when the prompt is computed or will not be: with `failed`
    /// when the worker did not take it, else with `done`, after `first_token` if it was computed.
    pub reservation: ReservationId,
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// The source of knowledge about its cache.
    pub cache: CacheSource,
    /// Cached tokens that the engine is expected to report.
    pub predicted_cached_tokens: u32,
    /// The same from its announcements only.
    pub announced_cached_tokens: u32,
}

/// The prefill of a request with two pools, for the receipt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefillNote {
    /// The target that computes the prompt, or was meant to.
    pub target: Option<(Target, Arc<str>)>,
    /// Why the decode worker computes the prompt; `None`: it does not.
    pub skipped: Option<PrefillSkip>,
    /// Duration of the prefill; `None` while it runs and where there was none.
    pub ms: Option<f64>,
}

/// The decision about a prefill.
#[derive(Debug, Default)]
pub(crate) struct PrefillDecision {
    pub(crate) leg: Option<PrefillLeg>,
    pub(crate) note: Option<PrefillNote>,
    /// Estimated time until the prompt is computed on that target.
    pub(crate) wait_ms: f64,
}

/// Why a decode worker computes the prompt itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefillSkip {
    /// It lacks too little of the prompt for a separate prefill.
    UnderThreshold,
    /// No worker of the prefill pool can be used.
    NoPrefillWorker,
    /// The prefill worker failed.
    PrefillFailed,
    /// The request has no single prompt that could be handed over.
    Unsplittable,
}

impl PrefillSkip {
    /// Every reason.
    pub const ALL: [Self; 4] = [
        Self::UnderThreshold,
        Self::NoPrefillWorker,
        Self::PrefillFailed,
        Self::Unsplittable,
    ];

    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnderThreshold => "under_threshold",
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::PrefillFailed => "prefill_failed",
            Self::Unsplittable => "unsplittable",
        }
    }
}
