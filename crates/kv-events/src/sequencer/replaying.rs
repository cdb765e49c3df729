//! The reading of replay answers.
//!
//! Up to vLLM 0.32 an answer is not always whole: the publisher's ROUTER silently drops messages
//! that exceed its queue for one reader (1000 messages), in the middle of an answer, at its tail,
//! or its end marker. The first messages are never dropped, since every answer starts with an empty
//! queue. So a short answer is reliable: a number it skips is not in the publisher's buffer, and
//! its end is the end. A long one is never final: wherever it skips a number, breaks off or ends,
//! the rest is requested once more.
//!
//! **Invariant**: every answer but the last brings at least [`LONG`] new batches, so the requests
//! end: the publisher's buffer is finite.

use kv_blocks::Moment;

use super::{Action, Purpose, ReplayProgress, ReplayRetry, ResumeState, Sequencer, SequencerPhase};

/// Length in batches from which on an answer may have lost some. A queue that overflowed has
/// delivered its first 1000 or so before; the margin allows for publishers with a smaller one.
const LONG: u64 = 256;

impl Sequencer {
    pub(super) fn replayed(
        &mut self,
        replay: ReplayProgress,
        seq: u64,
        payload: &[u8],
        actions: &mut Vec<Action>,
    ) {
        let last = self.last;
        match replay.purpose {
            Purpose::Recognise => {
                // The publisher sends more than requested; only the requested number is conclusive.
                if last.is_some_and(|last| seq < last.seq) {
                    return;
                }
                if self.resumption == ResumeState::Unproven
                    && !self.prove_resumption(seq, payload, actions)
                {
                    return;
                }
                if last.is_some_and(|last| last.is_contradicted_by(seq, payload)) {
                    return self.begin_epoch(actions);
                }
            }
            Purpose::Rebirth if last.is_some_and(|last| seq <= last.seq) => self.restart(actions),
            Purpose::Resync => self.start_over(seq, actions),
            Purpose::Rebirth | Purpose::History | Purpose::Gap => {}
        }
        if self
            .repeated_until
            .is_some_and(|until| until.is_contradicted_by(seq, payload))
        {
            return self.begin_epoch(actions);
        }
        self.returning = false;
        let purpose = if replay.purpose == Purpose::Gap {
            Purpose::Gap
        } else {
            Purpose::History
        };
        let mut replay = ReplayProgress { purpose, ..replay };
        if let Some(last) = self.last
            && seq <= last.seq
        {
            self.phase = SequencerPhase::Replaying(replay);
            return;
        }
        let skipped = self.last.map_or(0, |last| seq - last.seq - 1);
        if skipped > 0 && replay.received >= LONG {
            return self.continue_replay(replay, actions);
        }
        // Replays are in order: a number that a short one skipped is not in the publisher's buffer.
        self.accept_loss(skipped, actions);
        replay.received += 1;
        self.phase = SequencerPhase::Replaying(replay);
        self.apply(seq, payload, actions);
    }

    pub(super) fn replay_ended(&mut self, replay: ReplayProgress, actions: &mut Vec<Action>) {
        if replay.received >= LONG {
            return self.continue_replay(replay, actions);
        }
        match replay.purpose {
            Purpose::Recognise if self.resumption == ResumeState::Unproven => {
                self.drop_resumption(actions);
            }
            Purpose::Recognise => self.request_replay(0, Purpose::Rebirth, actions),
            // The publisher has not published the batches applied before: they belong to another
            // life.
            _ if self.repeated_until.is_some() => self.begin_epoch(actions),
            Purpose::History | Purpose::Gap | Purpose::Rebirth | Purpose::Resync => {
                if replay.purpose == Purpose::Resync {
                    // The answer is empty: the publisher keeps no batches.
                    actions.push(Action::Loss);
                }
                if replay.whole {
                    self.complete();
                }
                self.phase = SequencerPhase::Following;
                self.confirm_resumption(actions);
                self.drain(actions, replay.requested_after);
                if self.pending_resync.requested && matches!(self.phase, SequencerPhase::Following)
                {
                    self.request_replay(0, Purpose::Resync, actions);
                }
            }
        }
    }

    pub(super) fn replay_failed(
        &mut self,
        replay: ReplayProgress,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        if replay.received >= LONG {
            return self.continue_replay(replay, actions);
        }
        if self.resumption == ResumeState::Unproven {
            self.forget(actions);
            self.returning = false;
        }
        self.confirm_resumption(actions);
        self.pending_resync.retry = Some(ReplayRetry::after(self.pending_resync.retry, now));
        self.pending_resync.requested = true;
        self.phase = SequencerPhase::Following;
        // It is better to continue with a loss than to stop; the retry starts over.
        self.drain(actions, u64::MAX);
    }

    /// Decides by the first batch of a resync whether it can replace the known blocks.
    fn start_over(&mut self, first: u64, actions: &mut Vec<Action>) {
        // An earlier resync that broke off leaves its own end to reach.
        let known = self.repeated_until.or(self.last);
        let Some(known) = known.filter(|_| first > 0) else {
            return self.forget(actions);
        };
        // Behind the known batches nothing is repeated: numbers in between are a normal gap.
        if first <= known.seq {
            self.last = None;
            self.repeated_until = Some(known);
            self.batches.order.reset();
            actions.push(Action::Loss);
        }
    }

    fn begin_epoch(&mut self, actions: &mut Vec<Action>) {
        self.restart(actions);
        self.request_replay(0, Purpose::History, actions);
    }

    /// Requests the rest of a long answer, as part of the same replay; a clear is not repeated.
    fn continue_replay(&mut self, replay: ReplayProgress, actions: &mut Vec<Action>) {
        let from = self.last.map_or(0, |last| last.seq.saturating_add(1));
        self.phase = SequencerPhase::Replaying(ReplayProgress {
            received: 0,
            requested_after: self.pending.arrivals(),
            ..replay
        });
        actions.push(Action::RequestReplay { from });
    }
}
