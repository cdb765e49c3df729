//! Totals of a source's streams.

/// Totals of a source's streams. Every event ends as delivered, duplicate or late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderingCounts {
    /// Streams followed now.
    pub streams: u64,
    /// Events queued behind a gap now.
    pub waiting: u64,
    /// Events delivered in order.
    pub delivered: u64,
    /// Events that arrived before an earlier number.
    pub early: u64,
    /// Events that arrived twice.
    pub duplicates: u64,
    /// Events that arrived after they were counted as lost, or so late that it is unknown whether
    /// they came before.
    pub late: u64,
    /// Gaps with numbers that never arrived.
    pub lost_events: u64,
    /// Numbers that never arrived.
    pub lost: u64,
    /// Streams restarted by their publishers.
    pub restarts: u64,
    /// Delivered events that were rejected
    /// ([`StandardStreams::refuse`](super::StandardStreams::refuse)).
    pub refused: u64,
    /// Rejected events whose hashes do not follow from their tokens.
    pub mismatches: u64,
    /// Streams dropped because there were too many.
    pub forgotten: u64,
}
