//! Any order of things that can happen to a stream.

use std::time::Duration;

use kv_blocks::{IndexUpdate, Moment};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings,
    vllm::{EventEncoding, WireEvent, WireRemoved, encode},
};

/// Reads the bytes as a script. The first byte sets up the sequencer; then each step is a byte that says what happens, and
/// what belongs to it.
///
/// # Panics
///
/// If something follows a request for a replay, if a replay is asked for where there is none, or if, without a clear or a
/// hole in between, a batch is applied that is not behind the one before.
pub(crate) fn check(bytes: &[u8]) {
    let mut script = FuzzScript(bytes);
    let setup = script.byte();
    let settings = SequencerSettings {
        replay: setup & 1 == 0,
        max_pending_batches: usize::from(setup >> 1 & 7),
        max_pending_bytes: if setup & 0x80 == 0 { 1 << 20 } else { 100 },
        ..SequencerSettings::default()
    };
    let mut reader = FuzzedSequencer {
        sequencer: Sequencer::new(settings),
        replay: setup & 1 == 0,
        applied: None,
    };
    let mut now = Moment::START;
    while !script.0.is_empty() {
        let what = script.byte();
        match what & 7 {
            0 => reader.on(now, Input::Connected),
            1 => reader.on(now, Input::Disconnected),
            2 => {
                let (seq, payload) = script.batch(what);
                reader.on(
                    now,
                    Input::Live {
                        seq: Some(seq),
                        payload: &payload,
                    },
                );
            }
            3 => {
                let (seq, payload) = script.batch(what);
                reader.on(
                    now,
                    Input::ReplayBatch {
                        seq,
                        payload: &payload,
                    },
                );
            }
            4 => reader.on(now, Input::ReplayEnd),
            5 => reader.on(now, Input::ReplayFailed),
            6 if what & 8 == 0 => reader.on(now, Input::Resync),
            6 => reader.on(
                now,
                Input::Live {
                    seq: None,
                    payload: script.rest_of_payload(),
                },
            ),
            _ => {
                now = now + Duration::from_secs(u64::from(what >> 3));
                reader.on(now, Input::Tick);
            }
        }
    }
}

struct FuzzedSequencer {
    sequencer: Sequencer,
    replay: bool,
    /// The last batch applied since the last clear or hole.
    applied: Option<u64>,
}

impl FuzzedSequencer {
    fn on(&mut self, now: Moment, input: Input<'_>) {
        let unnumbered = matches!(input, Input::Live { seq: None, .. });
        let actions = self.sequencer.on(now, input);
        let last = actions.len().saturating_sub(1);
        for (at, action) in actions.into_iter().enumerate() {
            match action {
                Action::Apply(IndexUpdate::Removed(removed))
                    if !unnumbered && removed.hashes.len() == 1 =>
                {
                    let seq = removed.hashes[0].0;
                    assert!(
                        self.applied.is_none_or(|before| before < seq),
                        "{seq} behind {:?}",
                        self.applied
                    );
                    self.applied = Some(seq);
                }
                Action::Apply(_)
                | Action::ApplyLabelled { .. }
                | Action::Envelope(_)
                | Action::Confirm => {}
                Action::Clear | Action::Loss => self.applied = None,
                Action::RequestReplay { .. } => assert!(self.replay && at == last),
            }
            self.sequencer.record(1, 0, 0);
        }
        let _ = (
            self.sequencer.state(),
            self.sequencer.lag_events(),
            self.sequencer.counts(),
            self.sequencer.last_seq(),
        );
    }
}

struct FuzzScript<'a>(&'a [u8]);

impl<'a> FuzzScript<'a> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *byte
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number, and a batch that removes one block of that name; or one that cannot be read.
    fn batch(&mut self, what: u8) -> (u64, Vec<u8>) {
        let seq = if what & 8 == 0 {
            self.byte().into()
        } else {
            self.take(8)
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        if what & 0x70 == 0x70 {
            return (seq, vec![0xc1]);
        }
        let removed = WireRemoved {
            hashes: vec![seq.into()],
            medium: None,
        };
        // Batches of different lives differ.
        let ts = f64::from(what >> 4);
        (
            seq,
            encode(
                ts,
                None,
                &[WireEvent::Removed(removed)],
                EventEncoding::CURRENT,
            ),
        )
    }

    fn rest_of_payload(&mut self) -> &'a [u8] {
        let length = self.byte();
        self.take(length.into())
    }
}
