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
//! Blocks that an earlier process saved are kept only if the publisher still has the very batch at
//! their position; otherwise they are cleared, and the history is fetched as by a new process.
//!
//! **Invariant**: the batches applied between two [`Action::Clear`]s are in the publisher's order,
//! and no batch is applied twice, except that a resync may go back and apply all that follows
//! again.

mod batches;
mod continuation;
mod counts;
mod input;
mod live;
mod pending;
mod phase;
mod replaying;
mod report;
mod resuming;

use kv_blocks::{Moment, StreamPosition};

use batches::Batches;
use continuation::AcceptedBatches;
pub use continuation::{AcceptedBatch, AcceptedRecord, Continuation, ContinuationOutcome};
pub use counts::{EventKindCounts, SequencerCounts};
pub use input::{Action, Codec, Input, SequencerSettings, StreamState};
use pending::PendingQueue;
use phase::{PendingResync, Purpose, ReplayProgress, ReplayRetry, ResumeState, SequencerPhase};

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
    pending_resync: PendingResync,
    /// While a resync repeats batches applied before: the last of them.
    repeated_until: Option<StreamPosition>,
    resumption: ResumeState,
    accepted: AcceptedBatches,
}

impl Sequencer {
    /// Creates the sequencer of a stream without a connection.
    pub fn new(settings: SequencerSettings) -> Self {
        let resumption = match settings.resume {
            Some(_) => ResumeState::Unproven,
            None => ResumeState::Ended,
        };
        Self {
            pending: PendingQueue::new(settings.max_pending_batches, settings.max_pending_bytes),
            batches: Batches::new(settings.codec),
            last: settings.resume,
            settings,
            phase: SequencerPhase::Connecting,
            last_live: None,
            returning: false,
            unnumbered: false,
            epoch: 1,
            last_event_at: None,
            pending_resync: PendingResync::default(),
            repeated_until: None,
            resumption,
            accepted: AcceptedBatches::default(),
        }
    }

    /// Takes one input and returns the actions, to be carried out in order.
    pub fn on(&mut self, now: Moment, input: Input<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.batches.now = now;
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
                self.batches.tick(&mut actions);
                if matches!(self.phase, SequencerPhase::Following)
                    && self
                        .pending_resync
                        .retry
                        .is_some_and(|retry| retry.at <= now)
                {
                    self.request_replay(0, Purpose::Resync, &mut actions);
                }
            }
        }
        actions
    }

    fn connected(&mut self, actions: &mut Vec<Action>) {
        self.pending.clear();
        if self.resumption == ResumeState::Unproven && !self.settings.replay {
            self.forget(actions);
        }
        self.returning = self.last.is_some() || self.unnumbered;
        self.phase = SequencerPhase::Following;
        if self.settings.replay {
            match self.last {
                // Requests the last batch again: a publisher that answers with the same bytes has
                // not restarted.
                Some(last) => self.request_replay(last.seq, Purpose::Recognise, actions),
                None => self.request_replay(0, Purpose::History, actions),
            }
        }
    }

    fn request_replay(&mut self, from: u64, purpose: Purpose, actions: &mut Vec<Action>) {
        let whole = matches!(
            purpose,
            Purpose::History | Purpose::Rebirth | Purpose::Resync
        );
        self.phase = SequencerPhase::Replaying(ReplayProgress {
            purpose,
            whole,
            received: 0,
            requested_after: self.pending.arrivals(),
        });
        actions.push(Action::RequestReplay { from });
    }

    fn resync(&mut self, actions: &mut Vec<Action>) {
        match self.phase {
            _ if !self.settings.replay => return actions.push(Action::Loss),
            SequencerPhase::Following => self.request_replay(0, Purpose::Resync, actions),
            SequencerPhase::Replaying(_) | SequencerPhase::Connecting => {}
        }
        self.pending_resync.requested = true;
    }

    /// Marks this life's history as complete.
    fn complete(&mut self) {
        self.pending_resync = PendingResync::default();
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
        self.resumption = ResumeState::Ended;
        self.batches.forget();
        actions.push(Action::Clear);
    }

    fn accept_loss(&mut self, batches: u64, actions: &mut Vec<Action>) {
        if batches > 0 {
            actions.push(Action::Loss);
            self.batches.accept_loss(actions);
        }
        let holes = &mut self.batches.counts.lost_batches;
        *holes = holes.saturating_add(batches);
    }

    fn apply(&mut self, seq: u64, payload: &[u8], actions: &mut Vec<Action>) {
        let position = StreamPosition::of(seq, payload);
        self.accepted.add(self.last, position, payload);
        self.last = Some(position);
        self.batches.apply(payload, actions);
        let repeated = self.repeated_until.take_if(|until| until.seq <= seq);
        if repeated.is_some() {
            actions.push(Action::Loss);
        }
    }
}
