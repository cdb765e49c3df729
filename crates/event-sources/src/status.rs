//! What the follower's task tells its handle.

use kv_blocks::Moment;
use kv_events::{Counts, Sequencer, StreamState, vllm::IgnoredReason};

use crate::{SourceCounters, StreamCounts};

/// A stream as it stands, replaced as a whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status {
    pub(crate) state: StreamState,
    pub(crate) epoch: u64,
    pub(crate) last_seq: Option<u64>,
    pub(crate) lag_events: u64,
    pub(crate) lag_ms: Option<f64>,
    pub(crate) last_event_at: Option<Moment>,
    pub(crate) block_size: Option<u32>,
    pub(crate) rank: Option<u32>,
    pub(crate) last_error: Option<String>,
    pub(crate) totals: Totals,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            state: StreamState::Connecting,
            epoch: 1,
            last_seq: None,
            lag_events: 0,
            lag_ms: None,
            last_event_at: None,
            block_size: None,
            rank: None,
            last_error: None,
            totals: Totals::default(),
        }
    }
}

/// Totals over the stream's life. A sequencer that was given up in a quarantine leaves its counts here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    counts: StreamCounts,
    stored: u64,
    removed: u64,
    cleared: u64,
    /// In the order of [`IgnoredReason::ALL`].
    ignored: [u64; IgnoredReason::ALL.len()],
}

impl Totals {
    /// A message whose frames mean nothing.
    pub(crate) fn unreadable(&mut self) {
        self.counts.decode_errors += 1;
    }

    /// A message that nobody reads.
    pub(crate) fn dropped(&mut self) {
        self.counts.dropped += 1;
    }

    /// These totals and a sequencer's.
    pub(crate) fn plus(&self, sequencer: &Sequencer) -> Self {
        let more: &Counts = sequencer.counts();
        let mut sum = self.clone();
        for (total, more) in [
            (&mut sum.counts.batches, more.batches),
            (&mut sum.counts.events, more.events),
            (&mut sum.counts.applied, more.applied),
            (&mut sum.counts.ignored, more.ignored),
            (&mut sum.counts.decode_errors, more.decode_errors),
            (&mut sum.counts.orphans, more.orphans),
            (&mut sum.counts.duplicates, more.duplicates),
            (&mut sum.counts.gaps, more.gaps),
            (&mut sum.counts.holes, more.holes),
            (&mut sum.counts.restarts, more.restarts),
            (&mut sum.counts.dropped, more.dropped),
            (&mut sum.stored, more.stored),
            (&mut sum.removed, more.removed),
            (&mut sum.cleared, more.cleared),
        ] {
            // Numbers of a publisher reach some of these: a jump to the end of u64 counts as that many holes.
            *total = total.saturating_add(more);
        }
        for (total, reason) in sum.ignored.iter_mut().zip(IgnoredReason::ALL) {
            *total = total.saturating_add(more.ignored_by(reason));
        }
        sum
    }

    pub(crate) fn counts(&self) -> StreamCounts {
        self.counts.clone()
    }

    pub(crate) fn counters(&self) -> SourceCounters {
        let named: u64 = self.ignored.iter().sum();
        let reasons = IgnoredReason::ALL.into_iter().map(IgnoredReason::as_str).zip(self.ignored);
        SourceCounters {
            stored: self.stored,
            removed: self.removed,
            cleared: self.cleared,
            ignored: reasons.chain([("no_effect", self.counts.ignored.saturating_sub(named))]).collect(),
            decode_errors: self.counts.decode_errors,
            gaps: self.counts.gaps,
            resets: self.counts.restarts,
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_events::{Input, SequencerSettings};

    use super::*;

    #[test]
    fn holes_up_to_the_end_of_the_numbers_do_not_overflow_the_totals() {
        let settings = SequencerSettings { replay: false, max_pending_batches: 4, max_pending_bytes: 1 << 10 };
        let mut sequencer = Sequencer::new(settings);
        sequencer.on(Moment::START, Input::Connected);
        for seq in [0, u64::MAX, 0, u64::MAX] {
            sequencer.on(Moment::START, Input::Live { seq: Some(seq), payload: b"x" });
        }
        let once = Totals::default().plus(&sequencer);
        assert_eq!(once.plus(&sequencer).counts().holes, u64::MAX);
    }
}
