//! Batches from the live socket.

use super::{
    Action, Sequencer,
    phase::{BatchDisposition, GapAction, Purpose, SequencerPhase},
};

impl Sequencer {
    pub(super) fn live(&mut self, seq: Option<u64>, payload: &[u8], actions: &mut Vec<Action>) {
        if matches!(self.phase, SequencerPhase::Replaying(_)) {
            self.batches.counts.dropped += self.pending.push(seq, payload);
        } else if let BatchDisposition::Missing { from, purpose } =
            self.take_live(seq, payload, GapAction::Request, actions)
        {
            self.batches.counts.dropped += self.pending.push(seq, payload);
            self.request_replay(from, purpose, actions);
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
            missing = GapAction::Request;
        }
        if let Some(last) = self.last.filter(|last| self.returning && seq > last.seq)
            && missing == GapAction::Request
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
                if seq > expected && self.requests_gap(missing) {
                    return BatchDisposition::Missing {
                        from: expected,
                        purpose: Purpose::Gap,
                    };
                }
                self.accept_loss(seq - expected, actions);
            }
            // The life is known from its first batch on: an earlier failure of a replay no longer
            // matters. A failure now does, for the batches behind this one.
            None if seq == 0 && missing == GapAction::Request => self.complete(),
            // The beginning was missed: it may have been published since the last replay was
            // answered.
            None if missing == GapAction::Request && self.settings.replay => {
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
    fn requests_gap(&mut self, missing: GapAction) -> bool {
        let may_request = missing == GapAction::Request;
        self.batches.counts.gaps += u64::from(may_request);
        may_request && self.settings.replay
    }

    fn is_restart(&self, seq: u64, payload: &[u8]) -> bool {
        if self.last_live.is_some_and(|last_live| seq < last_live) {
            return true;
        }
        let Some(last) = self.last.filter(|_| self.returning) else {
            return false;
        };
        seq == 0 || seq < last.seq || last.is_contradicted_by(seq, payload)
    }

    /// Takes the queued live batches, until one of them is behind a gap that a replay may fill;
    /// gaps in front of the first `known` arrivals are known to be losses.
    pub(super) fn drain(&mut self, actions: &mut Vec<Action>, known: u64) {
        let epoch = self.epoch;
        while let Some(waiting) = self.pending.pop() {
            let known = self.epoch == epoch && waiting.arrival <= known;
            let missing = if known {
                GapAction::Accept
            } else {
                GapAction::Request
            };
            if let BatchDisposition::Missing { from, purpose } =
                self.take_live(waiting.seq, &waiting.payload, missing, actions)
            {
                self.pending.return_batch(waiting);
                self.request_replay(from, purpose, actions);
                return;
            }
        }
    }
}
