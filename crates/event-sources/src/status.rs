//! The status that a source's task publishes to its handle.

use kv_blocks::{Moment, Tier};
use kv_events::{Sequencer, SequencerCounts, StreamState, vllm::IgnoredReason};
use kv_index::UpdateOutcome;

use crate::{IgnoredCounts, SinkCounts, SourceCounters, StreamCounts, TierMoves, sse::MessageRate};

/// The last error of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamFault {
    pub(crate) text: String,
    /// Whether it is about what the publisher sent; otherwise it is about the connection.
    pub(crate) is_of_events: bool,
}

impl StreamFault {
    /// An error in what the publisher sent.
    pub(crate) fn of_events(text: String) -> Self {
        Self {
            text,
            is_of_events: true,
        }
    }

    /// An error of the connection, or one of an unknown kind.
    pub(crate) fn of_connection(text: String) -> Self {
        Self {
            text,
            is_of_events: false,
        }
    }
}

/// The status of a stream, replaced as a whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamStatus {
    pub(crate) state: StreamState,
    /// The kind of source at present, where it changes.
    pub(crate) source: Option<&'static str>,
    pub(crate) epoch: u64,
    pub(crate) last_seq: Option<u64>,
    pub(crate) lag_events: u64,
    pub(crate) lag_ms: Option<f64>,
    pub(crate) last_event_at: Option<Moment>,
    /// Message rate of a stream over HTTP; other sources do not measure it.
    pub(crate) rate: MessageRate,
    pub(crate) block_size: Option<u32>,
    pub(crate) rank: Option<u32>,
    pub(crate) other_block_size: u64,
    pub(crate) last_error: Option<StreamFault>,
    /// Connections after the first.
    pub(crate) reconnects: u64,
    pub(crate) totals: StreamTotals,
}

impl StreamStatus {
    /// Adds the counts of one of several streams over one socket; the state stays the socket's.
    pub(crate) fn add(&mut self, part: &Self) {
        self.lag_events = self.lag_events.saturating_add(part.lag_events);
        self.last_event_at = self.last_event_at.max(part.last_event_at);
        self.block_size = self.block_size.or(part.block_size);
        self.other_block_size += part.other_block_size;
        self.reconnects += part.reconnects;
        self.last_error = self.last_error.take().or_else(|| part.last_error.clone());
        self.totals.add(&part.totals);
    }

    /// Returns whether the last error may be told to a caller who chose the address: it is about an
    /// event of a publisher that has sent others.
    pub(crate) fn may_tell_error(&self) -> bool {
        let is_of_events = |fault: &StreamFault| fault.is_of_events;
        self.state != StreamState::Connecting
            && self.totals.counts().events > 0
            && self.last_error.as_ref().is_none_or(is_of_events)
    }

    pub(crate) fn counters(&self) -> SourceCounters {
        SourceCounters {
            reconnects: self.reconnects,
            ..self.totals.counters()
        }
    }
}

impl Default for StreamStatus {
    fn default() -> Self {
        Self {
            state: StreamState::Connecting,
            source: None,
            epoch: 1,
            last_seq: None,
            lag_events: 0,
            lag_ms: None,
            last_event_at: None,
            rate: MessageRate::default(),
            block_size: None,
            rank: None,
            other_block_size: 0,
            last_error: None,
            reconnects: 0,
            totals: StreamTotals::default(),
        }
    }
}

/// Totals over the stream's life, including those of sequencers that a quarantine discarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamTotals {
    counts: StreamCounts,
    stored: u64,
    moves: TierMoves,
    removed: u64,
    cleared: u64,
    /// In the order of [`IgnoredReason::ALL`].
    ignored: [u64; IgnoredReason::ALL.len()],
    /// Rejected envelopes by the label of the reason.
    rejected: IgnoredCounts,
}

impl From<SinkCounts> for StreamTotals {
    fn from(sink_counts: SinkCounts) -> Self {
        let SinkCounts {
            counts,
            stored,
            moves,
            removed,
            cleared,
            rejected,
            ..
        } = sink_counts;
        Self {
            counts,
            stored,
            moves,
            removed,
            cleared,
            rejected,
            ..Self::default()
        }
    }
}

impl StreamTotals {
    /// Counts a message with an unknown layout.
    pub(crate) fn record_unreadable(&mut self) {
        self.counts.decode_errors += 1;
    }

    /// Counts a store event by its tier and outcome.
    pub(crate) fn record_store(&mut self, tier: Tier, done: &UpdateOutcome) {
        self.moves.record_store(tier, done);
    }

    /// Counts a dropped message.
    pub(crate) fn record_dropped(&mut self) {
        self.counts.dropped += 1;
    }

    /// Returns the sum of these totals and a sequencer's.
    pub(crate) fn combined_with(&self, sequencer: &Sequencer) -> Self {
        let more: &SequencerCounts = sequencer.counts();
        let mut sum = self.clone();
        sum.add(&Self {
            counts: StreamCounts {
                batches: more.batches,
                events: more.events,
                applied: more.applied,
                ignored: more.ignored,
                decode_errors: more.decode_errors,
                orphans: more.orphans,
                duplicates: more.duplicates,
                gaps: more.gaps,
                lost_batches: more.lost_batches,
                restarts: more.restarts,
                dropped: more.dropped,
                rehashed: more.kinds.rehashed,
                unlisted_media: more.kinds.unlisted_media,
            },
            stored: more.kinds.stored,
            moves: TierMoves::default(),
            removed: more.kinds.removed,
            cleared: more.kinds.cleared,
            ignored: IgnoredReason::ALL.map(|reason| more.ignored_by(reason)),
            rejected: more.kinds.rejected.clone(),
        });
        sum
    }

    /// Adds another stream's totals.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            counts,
            stored,
            moves,
            removed,
            cleared,
            ignored,
            rejected,
        } = self;
        moves.add(other.moves);
        for (total, more) in [
            (&mut counts.batches, other.counts.batches),
            (&mut counts.events, other.counts.events),
            (&mut counts.applied, other.counts.applied),
            (&mut counts.ignored, other.counts.ignored),
            (&mut counts.decode_errors, other.counts.decode_errors),
            (&mut counts.orphans, other.counts.orphans),
            (&mut counts.duplicates, other.counts.duplicates),
            (&mut counts.gaps, other.counts.gaps),
            (&mut counts.lost_batches, other.counts.lost_batches),
            (&mut counts.restarts, other.counts.restarts),
            (&mut counts.dropped, other.counts.dropped),
            (&mut counts.rehashed, other.counts.rehashed),
            (&mut counts.unlisted_media, other.counts.unlisted_media),
            (stored, other.stored),
            (removed, other.removed),
            (cleared, other.cleared),
        ] {
            // Some of these come from a publisher's numbers: a jump to the end of u64 counts as
            // that many lost batches.
            *total = total.saturating_add(more);
        }
        for (reason, more) in &other.rejected {
            *rejected.entry(*reason).or_default() += *more;
        }
        for (total, more) in ignored.iter_mut().zip(other.ignored) {
            *total = total.saturating_add(more);
        }
    }

    pub(crate) fn counts(&self) -> StreamCounts {
        self.counts.clone()
    }

    fn counters(&self) -> SourceCounters {
        let rejected = self
            .rejected
            .iter()
            .map(|(reason, total)| (*reason, *total));
        let named: u64 = self.ignored.iter().chain(self.rejected.values()).sum();
        let reasons = IgnoredReason::ALL
            .into_iter()
            .map(IgnoredReason::as_str)
            .zip(self.ignored);
        SourceCounters {
            stored: self.stored,
            moves: self.moves,
            removed: self.removed,
            cleared: self.cleared,
            ignored: reasons
                .chain(rejected)
                .chain([("no_effect", self.counts.ignored.saturating_sub(named))])
                .collect(),
            decode_errors: self.counts.decode_errors,
            unlisted_media: self.counts.unlisted_media,
            gaps: self.counts.gaps,
            resets: self.counts.restarts,
            reconnects: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_events::{Input, SequencerSettings};

    use super::*;

    #[test]
    fn holes_up_to_the_largest_number_do_not_overflow_the_totals() {
        let settings = SequencerSettings {
            max_pending_batches: 4,
            max_pending_bytes: 1 << 10,
            ..SequencerSettings::default()
        };
        let mut sequencer = Sequencer::new(settings);
        sequencer.on(Moment::START, Input::Connected);
        for seq in [0, u64::MAX, 0, u64::MAX] {
            sequencer.on(
                Moment::START,
                Input::Live {
                    seq: Some(seq),
                    payload: b"x",
                },
            );
        }
        let once = StreamTotals::default().combined_with(&sequencer);
        assert_eq!(
            once.combined_with(&sequencer).counts().lost_batches,
            u64::MAX
        );
    }
}
