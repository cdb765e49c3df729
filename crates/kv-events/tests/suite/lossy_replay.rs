//! Replay answers that lost batches, as answers of more than 1000 messages do up to vLLM 0.32.

use std::{ops::Range, time::Duration};

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    vllm::{EventEncoding, WireEvent, WireRemoved, encode},
};

/// The shortest answer that may have lost a batch.
const LONG: u64 = 256;

/// A stream, and the numbers of the batches applied since the last clear.
struct LossyStream {
    sequencer: Sequencer,
    now: Moment,
    applied: Vec<u64>,
    clears: usize,
    holes: usize,
}

impl LossyStream {
    fn connected() -> (Self, Option<u64>) {
        let settings = SequencerSettings {
            replay: true,
            ..SequencerSettings::default()
        };
        let sequencer = Sequencer::new(settings);
        let mut stream = Self {
            sequencer,
            now: Moment::START,
            applied: Vec::new(),
            clears: 0,
            holes: 0,
        };
        let requested = stream.on(Input::Connected);
        (stream, requested)
    }

    /// Returns a stream that is up to date after these batches.
    fn following(history: Range<u64>) -> Self {
        let (mut stream, requested) = Self::connected();
        assert_eq!(requested, Some(0));
        assert_eq!(stream.on(Input::ReplayEnd), None);
        for seq in history {
            assert_eq!(stream.live(seq), None);
        }
        stream
    }

    /// Feeds an input; returns the start of the requested replay, if any.
    fn on(&mut self, input: Input<'_>) -> Option<u64> {
        let mut requested = None;
        for action in self.sequencer.on(self.now, input) {
            assert_eq!(requested, None, "no action follows a request");
            match action {
                Action::Apply(IndexUpdate::Removed(removed)) => {
                    self.applied.push(removed.hashes[0].0)
                }
                other @ (Action::Apply(_) | Action::ApplyLabelled { .. } | Action::Envelope(_)) => {
                    panic!("{other:?}")
                }
                Action::Clear => {
                    self.applied.clear();
                    self.clears += 1;
                }
                Action::Loss => self.holes += 1,
                Action::RequestReplay { from } => requested = Some(from),
                Action::Confirm => panic!("nothing was to be resumed"),
            }
        }
        requested
    }

    fn live(&mut self, seq: u64) -> Option<u64> {
        self.on(Input::Live {
            seq: Some(seq),
            payload: &payload(seq),
        })
    }

    fn replayed(&mut self, seq: u64) -> Option<u64> {
        self.on(Input::ReplayBatch {
            seq,
            payload: &payload(seq),
        })
    }

    /// Feeds batches of an answer, all in order.
    fn replay_range(&mut self, numbers: Range<u64>) {
        for seq in numbers {
            assert_eq!(self.replayed(seq), None, "{seq}");
        }
    }

    #[track_caller]
    fn has_applied(&self, numbers: impl IntoIterator<Item = u64>) {
        assert_eq!(self.applied, numbers.into_iter().collect::<Vec<_>>());
        assert_eq!(self.sequencer.state(), StreamState::Live);
    }
}

/// Returns a batch with one removal, whose hash is the batch's number.
fn payload(seq: u64) -> Vec<u8> {
    let removed = WireRemoved {
        hashes: vec![seq.into()],
        medium: None,
    };
    encode(
        1.0,
        Some(0),
        &[WireEvent::Removed(removed)],
        EventEncoding::CURRENT,
    )
}

#[test]
#[contract("MC11", "V19")]
fn a_number_skipped_by_a_long_answer_is_lost_and_requested_again() {
    let (mut stream, _) = LossyStream::connected();
    stream.replay_range(0..1000);
    assert_eq!(stream.replayed(1003), Some(1000));
    assert_eq!(
        stream.applied.len(),
        1000,
        "no batch behind the loss is applied"
    );
    assert_eq!(stream.sequencer.state(), StreamState::Replaying);
    stream.replay_range(1000..1010);
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied(0..1010);
    assert_eq!(
        (
            stream.holes,
            stream.sequencer.counts().lost_batches,
            stream.clears
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_number_skipped_by_a_short_answer_is_not_in_the_publishers_buffer() {
    let (mut stream, _) = LossyStream::connected();
    stream.replay_range(0..LONG - 1);
    assert_eq!(stream.replayed(LONG), None);
    assert_eq!(
        stream.on(Input::ReplayEnd),
        Some(LONG + 1),
        "one more batch makes the answer long"
    );
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied((0..LONG - 1).chain([LONG]));
    assert_eq!(stream.holes, 1);
}

#[test]
fn a_number_skipped_twice_is_a_hole() {
    let (mut stream, _) = LossyStream::connected();
    stream.replay_range(0..300);
    assert_eq!(stream.replayed(302), Some(300));
    stream.replay_range(302..600);
    assert_eq!(
        (stream.holes, stream.sequencer.counts().lost_batches),
        (1, 2)
    );
    // So is every other one: each costs one more answer, and each answer brings many batches.
    assert_eq!(stream.replayed(601), Some(600));
    stream.replay_range(601..602);
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied((0..300).chain(302..600).chain([601]));
    assert_eq!(
        (stream.holes, stream.sequencer.counts().lost_batches),
        (2, 3)
    );
}

#[test]
fn the_end_of_a_long_answer_counts_only_after_a_short_one_confirms_it() {
    let (mut stream, _) = LossyStream::connected();
    stream.replay_range(0..1000);
    // Numbers 1000 to 1499 are dropped, the end marker is not.
    assert_eq!(stream.live(1500), None);
    assert_eq!(stream.on(Input::ReplayEnd), Some(1000));
    stream.replay_range(1000..1500);
    assert_eq!(stream.on(Input::ReplayEnd), Some(1500));
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied(0..1501);
    assert_eq!(stream.holes, 0);
}

#[test]
fn a_long_answer_without_an_end_is_continued_at_once_and_a_short_one_failed() {
    let (mut stream, _) = LossyStream::connected();
    stream.replay_range(0..LONG);
    assert_eq!(stream.on(Input::ReplayFailed), Some(LONG));
    assert_eq!(stream.sequencer.state(), StreamState::Replaying);
    stream.replay_range(LONG..2 * LONG - 1);
    assert_eq!(stream.on(Input::ReplayFailed), None);
    assert_eq!(stream.sequencer.state(), StreamState::Stale);
    stream.now = Moment::at(Duration::from_secs(2));
    assert_eq!(
        stream.on(Input::Tick),
        Some(0),
        "the first failure starts the first pause"
    );
}

#[test]
fn live_batches_wait_for_all_answers_of_a_gap() {
    let mut stream = LossyStream::following(0..1);
    assert_eq!(stream.live(900), Some(1));
    stream.replay_range(1..400);
    assert_eq!(stream.live(901), None);
    assert_eq!(stream.replayed(500), Some(400));
    assert_eq!(stream.sequencer.state(), StreamState::Gapped);
    assert_eq!(stream.live(902), None);
    assert_eq!(stream.applied.len(), 400);
    stream.replay_range(400..500);
    assert_eq!(
        stream.on(Input::ReplayFailed),
        None,
        "a short answer without an end is a failure"
    );
    assert_eq!(
        (stream.sequencer.state(), stream.holes),
        (StreamState::Stale, 1)
    );
    assert_eq!(stream.applied[499..], [499, 900, 901, 902]);
    assert_eq!(stream.sequencer.counts().gaps, 1);
}

#[test]
fn live_batches_before_the_second_request_are_not_awaited_again() {
    let mut stream = LossyStream::following(0..1);
    assert_eq!(stream.live(400), Some(1));
    stream.replay_range(1..300);
    assert_eq!(
        stream.live(402),
        None,
        "number 401 belongs to a batch that could not be encoded"
    );
    assert_eq!(stream.replayed(301), Some(300));
    stream.replay_range(300..401);
    assert_eq!(stream.replayed(402), None);
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied((0..401).chain([402]));
    assert_eq!((stream.holes, stream.sequencer.counts().gaps), (1, 1));
}

#[test]
#[contract("V19")]
fn a_resync_clears_once_however_many_answers_it_needs() {
    let mut stream = LossyStream::following(0..3);
    assert_eq!(stream.on(Input::Resync), Some(0));
    stream.replay_range(0..1000);
    assert_eq!(stream.replayed(1500), Some(1000));
    assert_eq!(
        stream.on(Input::Resync),
        None,
        "a resync is already running"
    );
    stream.replay_range(1000..1900);
    assert_eq!(stream.on(Input::ReplayFailed), Some(1900));
    assert_eq!(stream.live(1901), None);
    stream.replay_range(1900..1901);
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied(0..1902);
    assert_eq!(
        (
            stream.clears,
            stream.holes,
            stream.sequencer.counts().restarts
        ),
        (1, 0, 0)
    );
}

#[test]
fn a_recognised_publisher_is_not_checked_again() {
    let mut stream = LossyStream::following(0..3);
    stream.on(Input::Disconnected);
    assert_eq!(stream.on(Input::Connected), Some(2));
    stream.replay_range(2..400);
    assert_eq!(stream.replayed(401), Some(400));
    stream.replay_range(400..402);
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied(0..402);
    assert_eq!((stream.clears, stream.sequencer.epoch()), (0, 1));
}

#[test]
fn known_batches_do_not_make_an_answer_long() {
    let mut stream = LossyStream::following(0..LONG + 1);
    assert_eq!(stream.live(LONG + 3), Some(LONG + 1));
    // The publisher ignores the requested number. A repeated request would never end.
    stream.replay_range(0..LONG + 1);
    assert_eq!(stream.replayed(LONG + 2), None);
    assert_eq!(stream.on(Input::ReplayEnd), None);
    stream.has_applied((0..LONG + 1).chain(LONG + 2..LONG + 4));
    assert_eq!(stream.holes, 1);
}
