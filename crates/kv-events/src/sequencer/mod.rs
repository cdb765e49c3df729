//! One stream's state: which batches arrived, which are missing, and the consequences for the
//! index.
//!
//! Publishers number their batches from 0 per process and do not announce a restart. So a number
//! that went down is a new life of the publisher, and so is a first number of 0 (or another batch
//! under the last number) after the connection was lost; a number that is skipped is a gap, to be
//! filled from the replay endpoint if there is one.
//!
//! The machine requests replays, it does not fetch them: sockets, time-outs and reconnecting are
//! the caller's. It reads one answer at a time: a new request drops the rest of the one before.
//!
//! A resync clears only what it can rebuild: the whole history, when the answer begins with number
//! 0. Where the publisher keeps less (vLLM 10 000 batches) or nothing, all known blocks stay, and
//! the available batches are applied over them once more. Blocks that the engine holds and never
//! stores again would be lost for good otherwise, with all their descendants, while a block that is
//! credited in error is corrected by the first request that needs it, whose prefill stores it. Both
//! ends of the repetition are an [`Action::Loss`], so that no store it repeats counts as a copy
//! afterwards.
//!
//! **Invariant**: the batches applied between two [`Action::Clear`]s are in the publisher's order,
//! and no batch is applied twice, except that a resync may go back and apply all that follows
//! again.

mod batches;
mod counts;
mod input;
mod pending;
mod phase;
mod replaying;

use std::hash::{DefaultHasher, Hasher};

use kv_blocks::Moment;

use batches::Batches;
pub use counts::{EventKindCounts, SequencerCounts};
pub use input::{Action, Codec, Input, SequencerSettings, StreamState};
use pending::PendingQueue;
use phase::{
    BatchDisposition, GapAction, Purpose, ReplayProgress, ReplayRetry, SequencerPhase,
    StreamPosition,
};

/// The state machine of one stream.
#[derive(Debug)]
pub struct Sequencer {
    settings: SequencerSettings,
    phase: SequencerPhase,
    /// The last batch applied in this life.
    last: Option<StreamPosition>,
    /// The last number seen on the live socket in this life; a lower one means a restart.
    last_live: Option<u64>,
    /// Reconnected, and not known yet whether to the same life of the publisher.
    returning: bool,
    /// Whether batches without a number were applied.
    unnumbered: bool,
    epoch: u64,
    pending: PendingQueue,
    batches: Batches,
    last_event_at: Option<Moment>,
    /// Time and pause of the next attempt after a failed replay; the attempt is a resync.
    retry: Option<ReplayRetry>,
    /// A resync is pending, because the caller requested it or a replay failed; until a whole
    /// replay succeeds.
    resync_wanted: bool,
    /// While a resync repeats batches applied before: the last of them.
    repeated_until: Option<StreamPosition>,
}

impl Sequencer {
    /// Creates the sequencer of a stream without a connection.
    pub fn new(settings: SequencerSettings) -> Self {
        Self {
            pending: PendingQueue::new(settings.max_pending_batches, settings.max_pending_bytes),
            batches: Batches::new(settings.codec),
            settings,
            phase: SequencerPhase::Connecting,
            last: None,
            last_live: None,
            returning: false,
            unnumbered: false,
            epoch: 1,
            last_event_at: None,
            retry: None,
            resync_wanted: false,
            repeated_until: None,
        }
    }

    /// Takes one input and returns the actions, to be carried out in order.
    pub fn on(&mut self, now: Moment, input: Input<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Connected => self.connected(&mut actions),
            Input::Disconnected => {
                self.phase = SequencerPhase::Connecting;
                self.pending.clear();
            }
            Input::Live { seq, payload } => {
                self.last_event_at = Some(now);
                if matches!(self.phase, SequencerPhase::Connecting) {
                    self.connected(&mut actions);
                }
                self.live(seq, payload, &mut actions);
            }
            Input::ReplayBatch { seq, payload } => {
                if let SequencerPhase::Replaying(replay) = self.phase {
                    self.last_event_at = Some(now);
                    self.replayed(replay, seq, payload, &mut actions);
                }
            }
            Input::ReplayEnd => {
                if let SequencerPhase::Replaying(replay) = self.phase {
                    self.replay_ended(replay, &mut actions);
                }
            }
            Input::ReplayFailed => {
                if let SequencerPhase::Replaying(replay) = self.phase {
                    self.replay_failed(replay, now, &mut actions);
                }
            }
            Input::Resync => self.resync(&mut actions),
            Input::Tick => {
                if matches!(self.phase, SequencerPhase::Following)
                    && self.retry.is_some_and(|retry| retry.at <= now)
                {
                    self.ask(0, Purpose::Resync, &mut actions);
                }
            }
        }
        actions
    }

    /// Records the index's result of one applied update, in blocks.
    pub fn record(&mut self, applied: u32, orphans: u32, ignored: u32) {
        self.batches.counts.record(applied, orphans, ignored);
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
            SequencerPhase::Following if self.retry.is_some() => StreamState::Stale,
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

    /// Returns the last decode error.
    pub fn last_error(&self) -> Option<&str> {
        self.batches.last_error.as_deref()
    }

    fn connected(&mut self, actions: &mut Vec<Action>) {
        self.pending.clear();
        self.returning = self.last.is_some() || self.unnumbered;
        self.phase = SequencerPhase::Following;
        if self.settings.replay {
            match self.last {
                // Requests the last batch again: a publisher that answers with the same bytes has
                // not restarted.
                Some(last) => self.ask(last.seq, Purpose::Recognise, actions),
                None => self.ask(0, Purpose::History, actions),
            }
        }
    }

    fn ask(&mut self, from: u64, purpose: Purpose, actions: &mut Vec<Action>) {
        let whole = matches!(
            purpose,
            Purpose::History | Purpose::Rebirth | Purpose::Resync
        );
        self.phase = SequencerPhase::Replaying(ReplayProgress {
            purpose,
            whole,
            brought: 0,
            asked_after: self.pending.arrivals(),
        });
        actions.push(Action::RequestReplay { from });
    }

    fn resync(&mut self, actions: &mut Vec<Action>) {
        match self.phase {
            _ if !self.settings.replay => return actions.push(Action::Loss),
            SequencerPhase::Following => self.ask(0, Purpose::Resync, actions),
            SequencerPhase::Replaying(_) | SequencerPhase::Connecting => {}
        }
        self.resync_wanted = true;
    }

    /// Marks this life's history as complete.
    fn complete(&mut self) {
        self.retry = None;
        self.resync_wanted = false;
    }

    fn live(&mut self, seq: Option<u64>, payload: &[u8], actions: &mut Vec<Action>) {
        if matches!(self.phase, SequencerPhase::Replaying(_)) {
            self.batches.counts.dropped += self.pending.push(seq, payload);
        } else if let BatchDisposition::Missing { from, purpose } =
            self.take_live(seq, payload, GapAction::Ask, actions)
        {
            self.batches.counts.dropped += self.pending.push(seq, payload);
            self.ask(from, purpose, actions);
        }
    }

    fn take_live(
        &mut self,
        seq: Option<u64>,
        payload: &[u8],
        mut missing: GapAction,
        actions: &mut Vec<Action>,
    ) -> BatchDisposition {
        let Some(seq) = seq else {
            self.take_unnumbered(payload, actions);
            return BatchDisposition::Done;
        };
        if self.is_restart(seq, payload) {
            self.restart(actions);
            // All known losses belong to the life before.
            missing = GapAction::Ask;
        }
        if let Some(last) = self.last.filter(|last| self.returning && seq > last.seq)
            && missing == GapAction::Ask
            && self.settings.replay
        {
            // The number would also fit the old life. The publisher has a batch to answer with now,
            // so a replay shows which life it is.
            return BatchDisposition::Missing {
                from: last.seq,
                purpose: Purpose::Recognise,
            };
        }
        self.returning = false;
        match self.last {
            Some(last) if seq <= last.seq => {
                self.count_repeat(seq);
                return BatchDisposition::Done;
            }
            Some(last) => {
                let expected = last.seq.saturating_add(1);
                if seq > expected && self.asks_for_gap(missing) {
                    return BatchDisposition::Missing {
                        from: expected,
                        purpose: Purpose::Gap,
                    };
                }
                self.accept_loss(seq - expected, actions);
            }
            // The life is known from its first batch on: an earlier failure of a replay no longer
            // matters. A failure now does, for the batches behind this one.
            None if seq == 0 && missing == GapAction::Ask => self.complete(),
            // The beginning was missed: it may have been published since the last replay was
            // answered.
            None if missing == GapAction::Ask && self.settings.replay => {
                return BatchDisposition::Missing {
                    from: 0,
                    purpose: Purpose::History,
                };
            }
            None => {}
        }
        self.last_live = Some(seq);
        self.apply(seq, payload, actions);
        BatchDisposition::Done
    }

    fn take_unnumbered(&mut self, payload: &[u8], actions: &mut Vec<Action>) {
        // Without numbers a lost connection is the only possible sign of a restart.
        if std::mem::take(&mut self.returning) {
            self.restart(actions);
        }
        self.unnumbered = true;
        self.batches.apply(payload, actions);
    }

    fn count_repeat(&mut self, seq: u64) {
        // Either sent twice, or a replay was faster than the live socket, which is no error.
        let twice = self.last_live == Some(seq);
        self.batches.counts.duplicates += u64::from(twice);
        self.last_live = Some(seq);
    }

    /// Counts a gap that is not known to be a loss; returns whether a replay may fill it.
    fn asks_for_gap(&mut self, missing: GapAction) -> bool {
        let may_ask = missing == GapAction::Ask;
        self.batches.counts.gaps += u64::from(may_ask);
        may_ask && self.settings.replay
    }

    fn is_restart(&self, seq: u64, payload: &[u8]) -> bool {
        if self.last_live.is_some_and(|last_live| seq < last_live) {
            return true;
        }
        let Some(last) = self.last.filter(|_| self.returning) else {
            return false;
        };
        seq == 0 || seq < last.seq || (seq == last.seq && digest(payload) != last.digest)
    }

    fn restart(&mut self, actions: &mut Vec<Action>) {
        self.batches.counts.restarts += 1;
        self.epoch += 1;
        self.returning = false;
        self.last_live = None;
        self.forget(actions);
    }

    fn forget(&mut self, actions: &mut Vec<Action>) {
        self.last = None;
        self.repeated_until = None;
        self.batches.forget();
        actions.push(Action::Clear);
    }

    fn accept_loss(&mut self, batches: u64, actions: &mut Vec<Action>) {
        if batches > 0 {
            actions.push(Action::Loss);
        }
        let holes = &mut self.batches.counts.lost_batches;
        *holes = holes.saturating_add(batches);
    }

    fn apply(&mut self, seq: u64, payload: &[u8], actions: &mut Vec<Action>) {
        self.last = Some(StreamPosition {
            seq,
            digest: digest(payload),
        });
        self.batches.apply(payload, actions);
        if self
            .repeated_until
            .take_if(|until| until.seq <= seq)
            .is_some()
        {
            actions.push(Action::Loss);
        }
    }

    /// Takes the queued live batches, until one of them is behind a gap that a replay may fill;
    /// gaps in front of the first `known` arrivals are known to be losses.
    fn drain(&mut self, actions: &mut Vec<Action>, known: u64) {
        let epoch = self.epoch;
        while let Some(waiting) = self.pending.pop() {
            let known = self.epoch == epoch && waiting.arrival <= known;
            let missing = if known {
                GapAction::Accept
            } else {
                GapAction::Ask
            };
            if let BatchDisposition::Missing { from, purpose } =
                self.take_live(waiting.seq, &waiting.payload, missing, actions)
            {
                self.pending.put_back(waiting);
                self.ask(from, purpose, actions);
                return;
            }
        }
    }
}

fn digest(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}
