//! The interface of a policy's rule.

use std::fmt::Debug;

use kv_blocks::WorkerId;

use super::{
    cost::{CandidateCost, CostUnit},
    input::{PolicyCandidate, PolicyInput},
};

/// The rule of one policy. `price` reads its memory, `chosen` updates it.
pub(crate) trait PolicyRule: Debug + Send {
    /// Returns the unit of the costs.
    fn unit(&self) -> CostUnit;

    /// Returns whether the request has what the rule decides by; if not, another policy decides.
    fn decides(&self, _scene: &PolicyInput<'_>) -> bool {
        true
    }

    /// Returns whether a temperature may choose another candidate than the cheapest.
    fn draws(&self) -> bool {
        false
    }

    /// Returns one cost per candidate, in their order.
    fn price(&self, scene: &PolicyInput<'_>) -> Vec<CandidateCost>;

    /// Records that the policy's own choice was taken.
    fn chosen(&mut self, _scene: &PolicyInput<'_>, _winner: &PolicyCandidate<'_>) {}

    /// Drops the state of a removed worker.
    fn forget(&mut self, _worker: WorkerId) {}
}
