//! Totals of a stream for metrics.

use std::collections::BTreeMap;

use crate::TierMoves;

/// Ignored events by reason. The set of reasons is closed: those of the codec, and `no_effect` for
/// events without effect on the index.
pub type IgnoredCounts = BTreeMap<&'static str, u64>;

/// One stream's totals for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceCounters {
    /// Store events.
    pub stored: u64,
    /// Those of them that moved blocks between tiers.
    pub moves: TierMoves,
    /// Remove events.
    pub removed: u64,
    /// Clear events.
    pub cleared: u64,
    /// Ignored events by reason.
    pub ignored: IgnoredCounts,
    /// Unusable batches, messages and events.
    pub decode_errors: u64,
    /// Events of blocks on a medium with an unknown name.
    pub unlisted_media: u64,
    /// Gaps in the batch numbers.
    pub gaps: u64,
    /// Clears of the target because the publisher restarted.
    pub resets: u64,
    /// Connections after the first one.
    pub reconnects: u64,
}
