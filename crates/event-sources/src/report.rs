//! Totals of a stream for metrics, and what a report may tell.

use std::collections::BTreeMap;

use kv_events::StreamState;

use crate::{StreamReport, TierMoves};

/// Replaces the text of a stream's last error by a word, which tells nothing of what answers at the
/// stream's address.
pub fn reduce_error(report: &mut StreamReport) {
    let word = if report.state == StreamState::Connecting.as_str() {
        "no_connection"
    } else if report.state == StreamState::Quarantined.as_str() {
        "unusable_messages"
    } else {
        "earlier_failure"
    };
    if let Some(error) = &mut report.last_error {
        *error = word.to_owned();
    }
}

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
