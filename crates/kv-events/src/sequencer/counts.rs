//! Totals of a stream's life.

use crate::vllm::IgnoredReason;

/// Totals of a stream's life. Every event ends as exactly one of applied, ignored, orphans or decode errors (which also
/// count unusable batches), once [`record`](super::Sequencer::record) was told what the index did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequencerCounts {
    /// Batches applied, unusable ones included.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Events the index took at least in part.
    pub applied: u64,
    /// Events without meaning or effect for the index.
    pub ignored: u64,
    /// Unusable batches and events.
    pub decode_errors: u64,
    /// Stores whose parent is unknown to the index.
    pub orphans: u64,
    /// Batches received twice.
    pub duplicates: u64,
    /// Times numbers were missing on the live socket.
    pub gaps: u64,
    /// Batches that stayed missing.
    pub lost_batches: u64,
    /// Restarts of the publisher noticed.
    pub restarts: u64,
    /// Batches dropped because the buffer beside a replay was full.
    pub dropped: u64,
    /// Events that said blocks were stored.
    pub stored: u64,
    /// Events that said blocks were removed.
    pub removed: u64,
    /// Events that said everything was cleared.
    pub cleared: u64,
    /// Events with a medium whose name is unknown.
    pub unlisted_media: u64,
    ignored_by: [u64; IgnoredReason::ALL.len()],
}

impl SequencerCounts {
    /// Events ignored for this reason before they reached the index.
    pub fn ignored_by(&self, reason: IgnoredReason) -> u64 {
        self.ignored_by[reason.index()]
    }

    pub(super) fn ignore(&mut self, reason: IgnoredReason) {
        self.ignored += 1;
        self.ignored_by[reason.index()] += 1;
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
