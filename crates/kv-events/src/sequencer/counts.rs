//! Totals of a stream's life.

use std::collections::BTreeMap;

use crate::{
    standard::{EventRejection, OrderingCounts},
    vllm::IgnoredReason,
};

/// Totals of a stream's life. Every event ends as exactly one of applied, ignored, orphans or
/// decode errors (which also count unusable batches), once [`record`](super::Sequencer::record) has
/// received the index's result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequencerCounts {
    /// Batches applied, unusable ones included.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Events that the index applied at least in part.
    pub applied: u64,
    /// Events without meaning or effect for the index.
    pub ignored: u64,
    /// Unusable batches and events.
    pub decode_errors: u64,
    /// Stores whose parent is unknown to the index.
    pub orphans: u64,
    /// Batches received twice.
    pub duplicates: u64,
    /// Gaps on the live socket.
    pub gaps: u64,
    /// Batches that no replay could bring.
    pub lost_batches: u64,
    /// Detected restarts of the publisher.
    pub restarts: u64,
    /// Batches dropped because the buffer beside a replay was full.
    pub dropped: u64,
    /// Events by their kind.
    pub kinds: EventKindCounts,
    ignored_by: [u64; IgnoredReason::ALL.len()],
}

/// Events of a stream's life by what they say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventKindCounts {
    /// Store events.
    pub stored: u64,
    /// Remove events.
    pub removed: u64,
    /// Clear events.
    pub cleared: u64,
    /// Events with an unknown medium name.
    pub unlisted_media: u64,
    /// Envelopes whose hashes are the publisher's own, indexed by their tokens.
    pub rehashed: u64,
    /// Rejected envelopes by the label of the reason.
    pub rejected: BTreeMap<&'static str, u64>,
}

impl SequencerCounts {
    /// Returns the events ignored for this reason before they reached the index.
    pub fn ignored_by(&self, reason: IgnoredReason) -> u64 {
        self.ignored_by[reason.index()]
    }

    pub(super) fn ignore(&mut self, reason: IgnoredReason) {
        self.ignored += 1;
        self.ignored_by[reason.index()] += 1;
    }

    /// Adds the counts of streams inside the batches.
    pub(super) fn add_order(&mut self, order: OrderingCounts) {
        self.duplicates += order.duplicates + order.late;
        self.gaps += order.lost_events;
        self.lost_batches = self.lost_batches.saturating_add(order.lost);
        self.restarts += order.restarts;
    }

    pub(super) fn reject(&mut self, why: &EventRejection) {
        if why.is_contradiction() {
            self.decode_errors += 1;
        } else {
            self.ignored += 1;
            *self.kinds.rejected.entry(why.as_str()).or_default() += 1;
        }
    }

    pub(super) fn record(&mut self, applied: u32, orphans: u32, _ignored: u32) {
        let kind = if orphans > 0 {
            &mut self.orphans
        } else if applied > 0 {
            &mut self.applied
        } else {
            &mut self.ignored
        };
        *kind += 1;
    }
}
