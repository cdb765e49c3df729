//! Report of a sequencer about its stream.

use kv_blocks::{Moment, StreamPosition};

use super::{
    Sequencer, SequencerCounts, StreamState,
    phase::{Purpose, ReplayProgress, SequencerPhase},
};
use crate::standard::EventRejection;

impl Sequencer {
    /// Records the index's result of one applied update, in blocks.
    pub fn record(&mut self, applied: u32, orphans: u32, ignored: u32) {
        self.batches.counts.record(applied, orphans, ignored);
    }

    /// Records the rejection of an envelope.
    pub fn reject(&mut self, why: &EventRejection) {
        self.batches.counts.reject(why);
        self.batches.last_error = Some(why.to_string());
    }

    /// Records an envelope that was indexed by its tokens, because its hashes are its publisher's
    /// own.
    pub fn record_rehash(&mut self) {
        self.batches.counts.kinds.rehashed += 1;
    }

    /// Returns the state of the stream.
    pub fn state(&self) -> StreamState {
        match self.phase {
            SequencerPhase::Connecting => StreamState::Connecting,
            SequencerPhase::Replaying(ReplayProgress {
                purpose: Purpose::Gap,
                ..
            }) => StreamState::Gapped,
            SequencerPhase::Replaying(_) => StreamState::Replaying,
            SequencerPhase::Following if self.pending_resync.retry.is_some() => StreamState::Stale,
            SequencerPhase::Following => StreamState::Live,
        }
    }

    /// Returns the totals so far.
    pub fn counts(&self) -> &SequencerCounts {
        &self.batches.counts
    }

    /// Returns the number of the last batch applied in this life.
    pub fn last_seq(&self) -> Option<u64> {
        self.last.map(|last| last.seq)
    }

    /// Returns the position up to which the index has the stream, for another process to continue
    /// there. `None` if none could: without a replay endpoint, and while the batches applied before
    /// are being repeated. Blocks of an earlier process need no proof for it: the next process asks
    /// for it again.
    pub fn position(&self) -> Option<StreamPosition> {
        let continues = self.settings.replay && self.repeated_until.is_none();
        self.last.filter(|_| continues)
    }

    /// Returns the number of publisher lives seen; 1 is the first.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the arrival time of the last batch.
    pub fn last_event_at(&self) -> Option<Moment> {
        self.last_event_at
    }

    /// Returns the publisher's wall clock in the last batch applied: with the reader's wall clock
    /// it gives the lag.
    pub fn last_batch_ts(&self) -> Option<f64> {
        self.batches.ts
    }

    /// Returns the number of batches that are known of and not yet applied.
    pub fn lag_events(&self) -> u64 {
        match (self.pending.newest(), self.last) {
            (Some(newest), Some(last)) => newest.saturating_sub(last.seq),
            _ => self.pending.len() as u64,
        }
    }

    /// Returns the data-parallel rank that the publisher named last.
    pub fn announced_rank(&self) -> Option<u32> {
        self.batches.rank
    }

    /// Returns the tokens per block of the last store in the device tier: the worker's block size
    /// must equal it for hits.
    pub fn announced_block_size(&self) -> Option<u32> {
        self.batches.block_size
    }

    /// Returns the last decode error or rejection.
    pub fn last_error(&self) -> Option<&str> {
        self.batches.last_error.as_deref()
    }
}
