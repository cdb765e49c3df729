//! Stores that move blocks between tiers.

use kv_blocks::Tier;
use kv_index::UpdateOutcome;

/// Store events that moved blocks between tiers; each also counts as a store event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierMoves {
    /// Blocks came to a tier below the device.
    pub offloaded: u64,
    /// Blocks that the target held in another tier only came back to the device.
    pub reloaded: u64,
}

impl TierMoves {
    /// Counts a store event by its tier and outcome.
    pub(crate) fn record_store(&mut self, tier: Tier, done: &UpdateOutcome) {
        if tier == Tier::Device {
            self.reloaded += u64::from(done.moved > 0);
        } else {
            self.offloaded += u64::from(done.applied > 0);
        }
    }

    /// Adds another stream's counts.
    pub fn add(&mut self, more: Self) {
        self.offloaded = self.offloaded.saturating_add(more.offloaded);
        self.reloaded = self.reloaded.saturating_add(more.reloaded);
    }
}
