//! The prefix memory as a hint where no target is known to hold any of the prompt.
//!
//! Cache-based policies use the hint. It counts while the target has at most its even share of the
//! load plus `prefix_routing.load_factor_epsilon`; otherwise the load decides, as without the hint.

use super::{load_factor::LoadFactor, rule::PolicyInput};
use crate::RingSettings;

#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixMemoryHint {
    load_factor: LoadFactor,
}

impl PrefixMemoryHint {
    pub(super) fn new(settings: RingSettings) -> Self {
        Self {
            load_factor: LoadFactor::above_even(settings.load_factor_epsilon),
        }
    }

    /// Returns the preferred candidate: of several ranks of the worker the one with the fewest in
    /// flight. `None`: there is no hint, or no capacity.
    pub(super) fn preferred(self, input: &PolicyInput<'_>) -> Option<usize> {
        let worker = input
            .affinity
            .served_by
            .filter(|_| input.overlap_weight > 0.0)?;
        let in_flight = |i: &usize| input.candidates[*i].state.load.in_flight;
        let all = || 0..input.candidates.len();
        let cap = self.load_factor.cap(
            all().map(|i| u64::from(in_flight(&i))).sum(),
            input.candidates.len(),
        );
        let ranks = all().filter(|i| input.candidates[*i].target().worker == worker);
        ranks
            .min_by_key(in_flight)
            .filter(|i| u64::from(in_flight(i)) < cap)
    }
}
