//! The actions of a sequencer, input by input.

use std::time::Duration;

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    vllm::{EventEncoding, WireEvent, WireRemoved, encode},
};

/// A stream under test, which records its actions.
struct StreamUnderTest {
    sequencer: Sequencer,
    now: Moment,
    epoch: u64,
}

#[derive(Debug, PartialEq)]
enum RecordedAction {
    /// The batch with this mark was applied.
    Apply(u64),
    Clear,
    Hole,
    Replay(u64),
}

use RecordedAction::{Apply, Clear, Hole, Replay};

impl StreamUnderTest {
    fn new(replay: bool) -> Self {
        let settings = SequencerSettings {
            replay,
            max_pending_batches: 4,
            ..SequencerSettings::default()
        };
        Self {
            sequencer: Sequencer::new(settings),
            now: Moment::START,
            epoch: 0,
        }
    }

    /// Returns a batch with one removal, which marks it.
    fn payload(&self, seq: u64) -> Vec<u8> {
        let mark = self.epoch * 1000 + seq;
        let removed = WireRemoved {
            hashes: vec![mark.into()],
            medium: None,
        };
        encode(
            1.0,
            Some(0),
            &[WireEvent::Removed(removed)],
            EventEncoding::CURRENT,
        )
    }

    fn on(&mut self, input: Input<'_>) -> Vec<RecordedAction> {
        let actions = self.sequencer.on(self.now, input);
        actions
            .into_iter()
            .map(|action| match action {
                Action::Apply(IndexUpdate::Removed(removed)) => Apply(removed.hashes[0].0),
                other @ (Action::Apply(_) | Action::ApplyLabelled { .. } | Action::Envelope(_)) => {
                    panic!("{other:?}")
                }
                Action::Clear => Clear,
                Action::Loss => Hole,
                Action::RequestReplay { from } => Replay(from),
                Action::Confirm => panic!("nothing was to be resumed"),
            })
            .collect()
    }

    fn live(&mut self, seq: u64) -> Vec<RecordedAction> {
        let payload = self.payload(seq);
        self.on(Input::Live {
            seq: Some(seq),
            payload: &payload,
        })
    }

    fn replayed(&mut self, seq: u64) -> Vec<RecordedAction> {
        let payload = self.payload(seq);
        self.on(Input::ReplayBatch {
            seq,
            payload: &payload,
        })
    }

    fn state(&self) -> StreamState {
        self.sequencer.state()
    }
}

#[test]
#[contract("MC11", "MC8")]
fn the_history_is_fetched_first_and_live_batches_wait_for_it() {
    let mut stream = StreamUnderTest::new(true);
    assert_eq!(stream.state(), StreamState::Connecting);
    assert_eq!(stream.on(Input::Connected), [Replay(0)]);
    assert_eq!(stream.state(), StreamState::Replaying);
    assert_eq!(stream.live(2), []);
    assert_eq!(stream.replayed(0), [Apply(0)]);
    assert_eq!(stream.replayed(1), [Apply(1)]);
    assert_eq!(stream.replayed(2), [Apply(2)]);
    assert_eq!(stream.live(3), []);
    assert_eq!(stream.sequencer.lag_events(), 1);
    assert_eq!(stream.on(Input::ReplayEnd), [Apply(3)]);
    assert_eq!(stream.state(), StreamState::Live);
    assert_eq!(stream.live(4), [Apply(4)]);
    let counts = stream.sequencer.counts();
    assert_eq!(
        (
            counts.batches,
            counts.duplicates,
            counts.gaps,
            counts.lost_batches,
            counts.restarts
        ),
        (5, 0, 0, 0, 0)
    );
    assert_eq!(
        (stream.sequencer.last_seq(), stream.sequencer.epoch()),
        (Some(4), 1)
    );
}

#[test]
fn without_a_replay_endpoint_the_first_batch_may_have_any_number() {
    let mut stream = StreamUnderTest::new(false);
    assert_eq!(stream.on(Input::Connected), []);
    assert_eq!(stream.state(), StreamState::Live);
    assert_eq!(stream.live(37), [Apply(37)]);
    assert_eq!(stream.sequencer.counts().gaps, 0);
    // Batches skipped later are lost for good.
    assert_eq!(stream.live(40), [Hole, Apply(40)]);
    assert_eq!(
        (
            stream.sequencer.counts().gaps,
            stream.sequencer.counts().lost_batches
        ),
        (1, 2)
    );
    assert_eq!(stream.state(), StreamState::Live);
}

#[test]
#[contract("MC8", "MC11")]
fn a_gap_is_filled_by_replay_before_any_later_batch_is_applied() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayEnd);
    stream.live(0);
    assert_eq!(stream.live(3), [Replay(1)]);
    assert_eq!(stream.state(), StreamState::Gapped);
    assert_eq!(stream.live(4), []);
    assert_eq!(stream.replayed(1), [Apply(1)]);
    assert_eq!(stream.replayed(2), [Apply(2)]);
    assert_eq!(stream.replayed(3), [Apply(3)]);
    assert_eq!(stream.on(Input::ReplayEnd), [Apply(4)]);
    let counts = stream.sequencer.counts();
    assert_eq!((counts.gaps, counts.lost_batches), (1, 0));
    assert_eq!(stream.state(), StreamState::Live);
}

#[test]
fn a_gap_left_after_the_end_marker_is_accepted_as_a_hole() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayEnd);
    stream.live(0);
    // Numbers 1 and 3 belong to batches that could not be encoded.
    assert_eq!(stream.live(2), [Replay(1)]);
    assert_eq!(stream.replayed(2), [Hole, Apply(2)]);
    assert_eq!(stream.replayed(4), [Hole, Apply(4)]);
    assert_eq!(stream.on(Input::ReplayEnd), []);
    assert_eq!(stream.sequencer.counts().lost_batches, 2);
    // An empty answer: the publisher has no buffer.
    assert_eq!(stream.live(6), [Replay(5)]);
    assert_eq!(stream.on(Input::ReplayEnd), [Hole, Apply(6)]);
    assert_eq!(
        (
            stream.sequencer.counts().gaps,
            stream.sequencer.counts().lost_batches
        ),
        (2, 3)
    );
    assert_eq!(stream.state(), StreamState::Live);
}

#[test]
#[contract("V17", "F56")]
fn the_same_number_twice_is_a_duplicate() {
    let mut stream = StreamUnderTest::new(false);
    stream.on(Input::Connected);
    stream.live(0);
    stream.live(1);
    assert_eq!(stream.live(1), []);
    assert_eq!(stream.sequencer.counts().duplicates, 1);
    assert_eq!(stream.live(2), [Apply(2)]);
}

#[test]
fn a_lower_number_is_a_restart() {
    for replay in [false, true] {
        let mut stream = StreamUnderTest::new(replay);
        stream.on(Input::Connected);
        stream.on(Input::ReplayEnd);
        for seq in 0..5 {
            stream.live(seq);
        }
        stream.epoch = 1;
        assert_eq!(stream.live(0), [Clear, Apply(1000)]);
        assert_eq!(stream.live(1), [Apply(1001)]);
        assert_eq!(
            (stream.sequencer.epoch(), stream.sequencer.counts().restarts),
            (2, 1)
        );
    }
}

#[test]
fn a_restart_with_missed_first_batches_is_replayed_from_its_start() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayEnd);
    for seq in 0..5 {
        stream.live(seq);
    }
    stream.epoch = 1;
    assert_eq!(stream.live(2), [Clear, Replay(0)]);
    assert_eq!(stream.replayed(0), [Apply(1000)]);
    assert_eq!(stream.replayed(1), [Apply(1001)]);
    assert_eq!(stream.on(Input::ReplayEnd), [Apply(1002)]);
    assert_eq!(stream.sequencer.counts().restarts, 1);
}

#[test]
fn after_a_lost_connection_the_same_publisher_is_continued() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayEnd);
    stream.live(0);
    stream.live(1);
    assert_eq!(stream.on(Input::Disconnected), []);
    assert_eq!(stream.state(), StreamState::Connecting);
    // The last batch is requested again, to recognise the publisher.
    assert_eq!(stream.on(Input::Connected), [Replay(1)]);
    assert_eq!(stream.replayed(1), []);
    assert_eq!(stream.replayed(2), [Apply(2)]);
    assert_eq!(stream.on(Input::ReplayEnd), []);
    assert_eq!(stream.live(3), [Apply(3)]);
    let counts = stream.sequencer.counts();
    assert_eq!(
        (
            stream.sequencer.epoch(),
            counts.restarts,
            counts.duplicates,
            counts.lost_batches
        ),
        (1, 0, 0, 0)
    );
}

#[test]
fn a_restart_beyond_the_old_number_is_recognised_by_its_bytes() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayEnd);
    stream.live(0);
    stream.live(1);
    stream.on(Input::Disconnected);
    stream.epoch = 1;
    assert_eq!(stream.on(Input::Connected), [Replay(1)]);
    assert_eq!(stream.replayed(1), [Clear, Replay(0)]);
    assert_eq!(stream.live(3), []);
    for seq in 0..4 {
        assert_eq!(stream.replayed(seq), [Apply(1000 + seq)]);
    }
    assert_eq!(stream.on(Input::ReplayEnd), []);
    assert_eq!(
        (stream.sequencer.epoch(), stream.sequencer.counts().restarts),
        (2, 1)
    );
}

#[test]
fn a_restart_below_the_old_number_is_recognised_by_an_empty_answer() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayEnd);
    for seq in 0..5 {
        stream.live(seq);
    }
    stream.on(Input::Disconnected);
    stream.epoch = 1;
    assert_eq!(stream.on(Input::Connected), [Replay(4)]);
    assert_eq!(stream.on(Input::ReplayEnd), [Replay(0)]);
    assert_eq!(stream.replayed(0), [Clear, Apply(1000)]);
    assert_eq!(stream.on(Input::ReplayEnd), []);
    assert_eq!(stream.live(1), [Apply(1001)]);
    assert_eq!(stream.sequencer.counts().restarts, 1);
}

#[test]
fn without_a_history_the_first_number_after_a_lost_connection_decides() {
    for replay in [false, true] {
        for (first, restarted) in [(0, true), (3, true), (5, false), (7, false)] {
            let mut stream = StreamUnderTest::new(replay);
            stream.on(Input::Connected);
            stream.on(Input::ReplayEnd);
            for seq in 0..5 {
                stream.live(seq);
            }
            stream.on(Input::Disconnected);
            stream.on(Input::Connected);
            // An empty buffer: two requests bring nothing.
            stream.on(Input::ReplayEnd);
            stream.on(Input::ReplayEnd);
            assert_eq!(stream.state(), StreamState::Live);
            let mut did = stream.live(first);
            while stream.state() != StreamState::Live {
                did.extend(stream.on(Input::ReplayEnd));
            }
            did.retain(|did| !matches!(did, Replay(_)));
            assert_eq!(
                did.first() == Some(&Clear),
                restarted,
                "replay {replay}, first {first}: {did:?}"
            );
            assert_eq!(stream.sequencer.counts().restarts, u64::from(restarted));
        }
    }
}

#[test]
fn a_failed_replay_is_retried_from_its_start() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    assert_eq!(stream.live(3), []);
    assert_eq!(stream.on(Input::ReplayFailed), [Apply(3)]);
    assert_eq!(stream.state(), StreamState::Stale);
    assert_eq!(stream.on(Input::Tick), []);
    stream.now = Moment::at(Duration::from_secs(2));
    assert_eq!(stream.on(Input::Tick), [Replay(0)]);
    assert_eq!(stream.replayed(0), [Clear, Apply(0)]);
    for seq in 1..4 {
        assert_eq!(stream.replayed(seq), [Apply(seq)]);
    }
    assert_eq!(stream.on(Input::ReplayEnd), []);
    assert_eq!(stream.state(), StreamState::Live);
    assert_eq!(stream.live(4), [Apply(4)]);
    // Pauses grow while the replay fails.
    assert_eq!(stream.live(6), [Replay(5)]);
    assert_eq!(stream.on(Input::ReplayFailed), [Hole, Apply(6)]);
    stream.now = stream.now + Duration::from_secs(2);
    assert_eq!(stream.on(Input::Tick), [Replay(0)]);
    assert_eq!(stream.on(Input::ReplayFailed), []);
    stream.now = stream.now + Duration::from_secs(2);
    assert_eq!(stream.on(Input::Tick), []);
    stream.now = stream.now + Duration::from_secs(2);
    assert_eq!(stream.on(Input::Tick), [Replay(0)]);
}

#[test]
fn a_failed_replay_does_not_affect_a_stream_known_from_its_start() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayFailed);
    assert_eq!(stream.state(), StreamState::Stale);
    assert_eq!(stream.live(0), [Apply(0)]);
    assert_eq!(stream.state(), StreamState::Live);
}

#[test]
fn live_batches_beyond_the_buffer_are_requested_again() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    for seq in 1..=6 {
        assert_eq!(stream.live(seq), []);
    }
    assert_eq!(stream.sequencer.counts().dropped, 2);
    assert_eq!(stream.replayed(0), [Apply(0)]);
    // Four are left, 3 to 6; 1 and 2 are missing now.
    assert_eq!(stream.on(Input::ReplayEnd), [Replay(1)]);
    assert_eq!(stream.replayed(1), [Apply(1)]);
    assert_eq!(stream.replayed(2), [Apply(2)]);
    assert_eq!(
        stream.on(Input::ReplayEnd),
        [Apply(3), Apply(4), Apply(5), Apply(6)]
    );
    assert_eq!(stream.sequencer.counts().lost_batches, 0);
}

#[test]
#[contract("V11")]
fn batches_without_numbers_are_applied_on_arrival() {
    let mut stream = StreamUnderTest::new(false);
    let payload = stream.payload(1);
    let unnumbered = Input::Live {
        seq: None,
        payload: &payload,
    };
    stream.on(Input::Connected);
    assert_eq!(stream.on(unnumbered), [Apply(1)]);
    assert_eq!(stream.on(unnumbered), [Apply(1)]);
    // A lost connection is the only sign of a restart.
    stream.on(Input::Disconnected);
    stream.on(Input::Connected);
    assert_eq!(stream.on(unnumbered), [Clear, Apply(1)]);
    assert_eq!(stream.sequencer.epoch(), 2);
}

#[test]
fn undecodable_batches_and_events_are_skipped_and_count_as_losses() {
    let mut stream = StreamUnderTest::new(false);
    stream.on(Input::Connected);
    stream.live(0);
    assert_eq!(
        stream.on(Input::Live {
            seq: Some(1),
            payload: b"junk"
        }),
        [Hole]
    );
    // Two malformed events between two good ones.
    let good = stream.payload(2);
    let event = &good[11..good.len() - 1];
    let mixed = [&good[..10], &[0x94], event, &[0x2a, 0x2a], event, &[0]].concat();
    assert_eq!(
        stream.on(Input::Live {
            seq: Some(2),
            payload: &mixed
        }),
        [Apply(2), Hole, Apply(2)]
    );
    assert_eq!(stream.live(3), [Apply(3)]);
    let counts = stream.sequencer.counts();
    assert_eq!(
        (counts.decode_errors, counts.events, counts.gaps),
        (3, 6, 0)
    );
    assert!(stream.sequencer.last_error().unwrap().contains("malformed"));
}

#[test]
fn every_event_is_accounted_for_once() {
    let mut stream = StreamUnderTest::new(false);
    stream.on(Input::Connected);
    for seq in 0..3 {
        stream.live(seq);
    }
    stream.sequencer.record(1, 0, 0);
    stream.sequencer.record(2, 1, 0);
    stream.sequencer.record(0, 0, 1);
    let counts = stream.sequencer.counts();
    assert_eq!(
        (
            counts.events,
            counts.applied,
            counts.orphans,
            counts.ignored
        ),
        (3, 1, 1, 1)
    );
    assert_eq!(
        (
            counts.kinds.removed,
            counts.kinds.stored,
            counts.kinds.cleared
        ),
        (3, 0, 0)
    );
}

#[test]
fn extreme_numbers_are_handled() {
    let mut stream = StreamUnderTest::new(true);
    stream.on(Input::Connected);
    stream.on(Input::ReplayEnd);
    stream.live(0);
    assert_eq!(stream.live(u64::MAX), [Replay(1)]);
    stream.on(Input::ReplayEnd);
    stream.live(u64::MAX);
    stream.replayed(u64::MAX);
    stream.live(1);
    stream.on(Input::ReplayEnd);
    assert_eq!(stream.sequencer.counts().lost_batches, u64::MAX - 1);
}
