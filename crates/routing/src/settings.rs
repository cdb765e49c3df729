//! Settings of the decision, already checked.

use std::time::Duration;

use crate::Policy;

/// Settings of the decision.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingSettings {
    /// The policy when a job names none.
    pub policy: Policy,
    /// Weight of cached prefixes, 0 to 100.
    pub overlap_weight: f64,
    /// 0 takes the lowest cost, above 0 draws by cost.
    pub temperature: f64,
    /// Whether a decision is entered in the index before the engine confirms it (targets with events).
    pub speculative: bool,
    /// How long such an entry lives without confirmation.
    pub speculative_ttl: Duration,
    /// How long an entry lives for a target without events.
    pub prediction_ttl: Duration,
    /// What a cached block is worth by where it sits.
    pub medium_weights: MediumWeights,
    /// Whether blocks of active sequences are counted.
    pub track_active_blocks: bool,
    /// Candidates kept in a decision, at least 2.
    pub kept_candidates: usize,
}

impl Default for RoutingSettings {
    fn default() -> Self {
        Self {
            policy: Policy::Warm,
            overlap_weight: 1.0,
            temperature: 0.0,
            speculative: true,
            speculative_ttl: Duration::from_secs(2),
            prediction_ttl: Duration::from_secs(120),
            medium_weights: MediumWeights::default(),
            track_active_blocks: true,
            kept_candidates: 16,
        }
    }
}

/// What a cached block is worth by where it sits. Remote storage weighs as disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediumWeights {
    /// In the accelerator's memory, or assumed to be there.
    pub gpu: f64,
    /// In host memory.
    pub cpu: f64,
    /// On disk.
    pub disk: f64,
}

impl Default for MediumWeights {
    fn default() -> Self {
        Self { gpu: 1.0, cpu: 0.3, disk: 0.05 }
    }
}
