//! Totals of a source's streams.

/// Totals of a source's streams. Every event ends as delivered, duplicate or late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderingCounts {
    /// Streams followed now.
    pub streams: u64,
    /// Events that wait now.
    pub waiting: u64,
    /// Events given out in order.
    pub delivered: u64,
    /// Events that came early.
    pub early: u64,
    /// Events that came twice.
    pub duplicates: u64,
    /// Events that came after they were given up, or so much later that nobody knows whether they came before.
    pub late: u64,
    /// Times numbers stayed missing.
    pub lost_events: u64,
    /// Numbers that stayed missing.
    pub lost: u64,
    /// Streams that began again.
    pub restarts: u64,
    /// Delivered events that were refused ([`Streams::refuse`](super::Streams::refuse)).
    pub refused: u64,
    /// Those of them whose hashes do not follow from their tokens.
    pub mismatches: u64,
    /// Streams forgotten because there were too many.
    pub forgotten: u64,
}
