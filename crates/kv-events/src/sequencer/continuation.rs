//! Batches that come another way than from the publisher itself, such as a log that several readers
//! share: taken only if they provably continue what is applied.

use kv_blocks::{Moment, StreamPosition};

use super::{Action, Sequencer, SequencerPhase};

/// A batch with the proof of its place.
#[derive(Clone, Copy, Debug)]
pub struct Continuation<'a> {
    /// Its number.
    pub seq: u64,
    /// The digest of the batch with the number before; `None` if it is not known.
    pub previous: Option<u64>,
    /// The encoded batch.
    pub payload: &'a [u8],
}

/// Outcome of a [`Continuation`].
#[derive(Clone, Debug, PartialEq)]
pub enum ContinuationOutcome {
    /// It is the next batch; these actions are to be carried out.
    Applied(Vec<Action>),
    /// It is the last batch applied.
    Repeated,
    /// It does not continue what is applied. Nothing changed; only the publisher can tell whether
    /// batches are missing or it restarted.
    Unproven,
    /// A replay runs, behind which the batch may be the next one.
    Busy,
}

/// A batch that was applied, with what another reader needs to take it as a [`Continuation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedBatch {
    /// Its position.
    pub position: StreamPosition,
    /// The digest of the batch with the number before, if that was applied before it.
    pub previous: Option<u64>,
    /// The encoded batch; empty if only positions are recorded.
    pub payload: Vec<u8>,
}

/// What a sequencer records of the batches that it applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptedRecord {
    /// Nothing.
    #[default]
    Off,
    /// Their positions.
    Positions,
    /// Their positions and payloads.
    Batches,
}

/// Accepted batches that were not taken yet. Bounded by what one input applies: the queue of a
/// replay.
#[derive(Debug, Default)]
pub(super) struct AcceptedBatches {
    record: AcceptedRecord,
    batches: Vec<AcceptedBatch>,
}

impl AcceptedBatches {
    pub(super) fn add(
        &mut self,
        before: Option<StreamPosition>,
        position: StreamPosition,
        payload: &[u8],
    ) {
        if self.record == AcceptedRecord::Off {
            return;
        }
        self.batches.push(AcceptedBatch {
            position,
            previous: before
                .filter(|before| before.seq.checked_add(1) == Some(position.seq))
                .map(|before| before.digest),
            payload: match self.record {
                AcceptedRecord::Batches => payload.to_vec(),
                _ => Vec::new(),
            },
        });
    }
}

impl Sequencer {
    /// Takes a batch that did not come from the publisher itself.
    pub fn continue_with(&mut self, now: Moment, batch: Continuation<'_>) -> ContinuationOutcome {
        if matches!(self.phase, SequencerPhase::Replaying(_)) {
            return ContinuationOutcome::Busy;
        }
        let Continuation {
            seq,
            previous,
            payload,
        } = batch;
        let continues = match self.last {
            Some(last) if last.is_at(seq, payload) => return ContinuationOutcome::Repeated,
            Some(last) => last.seq.checked_add(1) == Some(seq) && previous == Some(last.digest),
            None => seq == 0 && !self.unnumbered,
        };
        if !continues || self.repeated_until.is_some() {
            return ContinuationOutcome::Unproven;
        }
        let mut actions = Vec::new();
        self.batches.now = now;
        self.last_event_at = Some(now);
        self.apply(seq, payload, &mut actions);
        ContinuationOutcome::Applied(actions)
    }

    /// Chooses what is recorded of the batches applied from now on.
    pub fn set_accepted_record(&mut self, record: AcceptedRecord) {
        self.accepted.record = record;
    }

    /// Returns the batches applied since the last call, in their order.
    pub fn take_accepted(&mut self) -> Vec<AcceptedBatch> {
        std::mem::take(&mut self.accepted.batches)
    }
}
