//! The whole history is fetched again on request.

use std::time::Duration;

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    vllm::{EventEncoding, WireEvent, WireRemoved, encode},
};

/// Feeds an input; returns the actions, one word each: the number of an applied batch, `clear`,
/// `hole`, or `from N` for a requested replay.
fn on(sequencer: &mut Sequencer, input: Input<'_>) -> Vec<String> {
    let label = |action| match action {
        Action::Apply(IndexUpdate::Removed(removed)) => removed.hashes[0].0.to_string(),
        other @ (Action::Apply(_) | Action::ApplyLabelled { .. } | Action::Envelope(_)) => {
            panic!("{other:?}")
        }
        Action::Clear => "clear".to_owned(),
        Action::Loss => "hole".to_owned(),
        Action::RequestReplay { from } => format!("from {from}"),
        Action::Confirm => "confirm".to_owned(),
    };
    sequencer
        .on(Moment::START, input)
        .into_iter()
        .map(label)
        .collect()
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

fn live(sequencer: &mut Sequencer, seq: u64) -> Vec<String> {
    on(
        sequencer,
        Input::Live {
            seq: Some(seq),
            payload: &payload(seq),
        },
    )
}

fn replayed(sequencer: &mut Sequencer, seq: u64) -> Vec<String> {
    on(
        sequencer,
        Input::ReplayBatch {
            seq,
            payload: &payload(seq),
        },
    )
}

/// Returns a stream that is up to date at number 2.
fn following(replay: bool) -> Sequencer {
    let mut sequencer = Sequencer::new(SequencerSettings {
        replay,
        ..SequencerSettings::default()
    });
    on(&mut sequencer, Input::Connected);
    on(&mut sequencer, Input::ReplayEnd);
    for seq in 0..3 {
        assert_eq!(live(&mut sequencer, seq), [seq.to_string()]);
    }
    sequencer
}

#[test]
fn a_resync_clears_when_the_history_arrives_and_live_batches_wait() {
    let mut sequencer = following(true);
    assert_eq!(on(&mut sequencer, Input::Resync), ["from 0"]);
    assert_eq!(sequencer.state(), StreamState::Replaying);
    assert_eq!(
        on(&mut sequencer, Input::Resync),
        [""; 0],
        "one resync at a time"
    );
    assert_eq!(live(&mut sequencer, 3), [""; 0]);
    assert_eq!(replayed(&mut sequencer, 0), ["clear", "0"]);
    assert_eq!(sequencer.state(), StreamState::Replaying);
    assert_eq!(on(&mut sequencer, Input::Resync), [""; 0]);
    assert_eq!(replayed(&mut sequencer, 1), ["1"]);
    assert_eq!(replayed(&mut sequencer, 2), ["2"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["3"]);
    assert_eq!(sequencer.state(), StreamState::Live);
    assert_eq!(live(&mut sequencer, 3), [""; 0]);
    let counts = sequencer.counts();
    assert_eq!(
        (
            sequencer.epoch(),
            counts.restarts,
            counts.lost_batches,
            counts.duplicates
        ),
        (1, 0, 0, 1)
    );
}

#[test]
fn without_a_history_known_blocks_stay_and_the_numbers_continue() {
    let mut sequencer = following(false);
    assert_eq!(on(&mut sequencer, Input::Resync), ["hole"]);
    assert_eq!(sequencer.state(), StreamState::Live);
    assert_eq!(
        live(&mut sequencer, 2),
        [""; 0],
        "a duplicate still counts as one"
    );
    assert_eq!(live(&mut sequencer, 4), ["hole", "4"]);

    // A replay endpoint with an empty history gives the same result.
    let mut sequencer = following(true);
    on(&mut sequencer, Input::Resync);
    assert_eq!(live(&mut sequencer, 3), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["hole", "3"]);
    assert_eq!(sequencer.state(), StreamState::Live);
}

#[test]
#[contract("MC11")]
fn a_truncated_history_is_applied_again_and_clears_nothing() {
    let mut sequencer = following(true);
    assert_eq!(live(&mut sequencer, 3), ["3"]);
    assert_eq!(on(&mut sequencer, Input::Resync), ["from 0"]);
    assert_eq!(live(&mut sequencer, 4), [""; 0]);
    assert_eq!(replayed(&mut sequencer, 2), ["hole", "2"]);
    assert_eq!(
        replayed(&mut sequencer, 3),
        ["3", "hole"],
        "the repetition ends with the known batches"
    );
    assert_eq!(replayed(&mut sequencer, 4), ["4"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
    assert_eq!(live(&mut sequencer, 5), ["5"]);
    assert_eq!(
        (sequencer.state(), sequencer.counts().restarts),
        (StreamState::Live, 0)
    );

    // Not even the last batch is available: nothing is repeated.
    on(&mut sequencer, Input::Resync);
    assert_eq!(replayed(&mut sequencer, 8), ["hole", "8"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
    assert_eq!(sequencer.counts().lost_batches, 2);
}

#[test]
fn a_repetition_that_breaks_off_still_ends_at_the_right_batch() {
    let mut sequencer = following(true);
    (3..6).for_each(|seq| drop(live(&mut sequencer, seq)));
    on(&mut sequencer, Input::Resync);
    assert_eq!(replayed(&mut sequencer, 2), ["hole", "2"]);
    on(&mut sequencer, Input::Disconnected);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 2"]);
    assert_eq!(replayed(&mut sequencer, 2), [""; 0]);
    assert_eq!(replayed(&mut sequencer, 3), ["3"]);
    assert_eq!(on(&mut sequencer, Input::ReplayFailed), [""; 0]);
    // Meanwhile the publisher has dropped more batches.
    let later = Moment::at(Duration::from_secs(2));
    assert_eq!(
        sequencer.on(later, Input::Tick),
        [Action::RequestReplay { from: 0 }]
    );
    assert_eq!(replayed(&mut sequencer, 4), ["hole", "4"]);
    assert_eq!(replayed(&mut sequencer, 5), ["5", "hole"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
    assert_eq!(
        (sequencer.state(), sequencer.counts().restarts),
        (StreamState::Live, 0)
    );
}

#[test]
fn a_repetition_with_other_bytes_is_a_restart() {
    // The last number has other bytes, or the history ends before that number.
    for other_bytes in [true, false] {
        let mut sequencer = following(true);
        on(&mut sequencer, Input::Resync);
        assert_eq!(replayed(&mut sequencer, 1), ["hole", "1"]);
        let did = if other_bytes {
            on(
                &mut sequencer,
                Input::ReplayBatch {
                    seq: 2,
                    payload: &payload(99),
                },
            )
        } else {
            on(&mut sequencer, Input::ReplayEnd)
        };
        assert_eq!(did, ["clear", "from 0"]);
        assert_eq!(replayed(&mut sequencer, 1), ["1"]);
        assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
        assert_eq!(
            (sequencer.state(), sequencer.epoch()),
            (StreamState::Live, 2)
        );
    }
}

#[test]
fn a_resync_requested_during_a_replay_follows_it() {
    let mut sequencer = following(true);
    assert_eq!(live(&mut sequencer, 4), ["from 3"]);
    assert_eq!(on(&mut sequencer, Input::Resync), [""; 0]);
    assert_eq!(replayed(&mut sequencer, 3), ["3"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["4", "from 0"]);
    assert_eq!(replayed(&mut sequencer, 0), ["clear", "0"]);
    (1..5).for_each(|seq| drop(replayed(&mut sequencer, seq)));
    assert_eq!(
        on(&mut sequencer, Input::ReplayEnd),
        [""; 0],
        "one resync is enough"
    );
}

#[test]
fn a_resync_requested_without_a_connection_starts_with_the_next_one() {
    let mut sequencer = following(true);
    on(&mut sequencer, Input::Disconnected);
    assert_eq!(on(&mut sequencer, Input::Resync), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 2"]);
    assert_eq!(replayed(&mut sequencer, 2), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["from 0"]);
    // A new connection fetches the whole history anyway.
    let mut sequencer = Sequencer::new(SequencerSettings {
        replay: true,
        ..SequencerSettings::default()
    });
    assert_eq!(on(&mut sequencer, Input::Resync), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 0"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
}

#[test]
fn a_resync_interrupted_by_a_lost_connection_starts_with_the_next_one() {
    // The connection is lost before its first batch, in its middle, and after it has failed.
    for (batches, failed) in [(0, false), (1, false), (0, true)] {
        let mut sequencer = following(true);
        on(&mut sequencer, Input::Resync);
        (0..batches).for_each(|seq| drop(replayed(&mut sequencer, seq)));
        if failed {
            on(&mut sequencer, Input::ReplayFailed);
        }
        on(&mut sequencer, Input::Disconnected);
        let last = sequencer.last_seq().unwrap();
        assert_eq!(
            on(&mut sequencer, Input::Connected),
            [format!("from {last}")]
        );
        (last..3).for_each(|seq| drop(replayed(&mut sequencer, seq)));
        assert_eq!(
            on(&mut sequencer, Input::ReplayEnd),
            ["from 0"],
            "{batches} batches, failed: {failed}"
        );
        assert_eq!(replayed(&mut sequencer, 0), ["clear", "0"]);
        (1..3).for_each(|seq| drop(replayed(&mut sequencer, seq)));
        assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
        assert_eq!(sequencer.state(), StreamState::Live);
        // After it succeeds it is not repeated.
        on(&mut sequencer, Input::Disconnected);
        on(&mut sequencer, Input::Connected);
        on(
            &mut sequencer,
            Input::ReplayBatch {
                seq: 2,
                payload: &payload(2),
            },
        );
        assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
    }
}

#[test]
fn a_successful_replay_does_not_replace_a_failed_one() {
    let mut sequencer = following(true);
    assert_eq!(live(&mut sequencer, 4), ["from 3"]);
    assert_eq!(on(&mut sequencer, Input::ReplayFailed), ["hole", "4"]);
    assert_eq!(live(&mut sequencer, 6), ["from 5"]);
    assert_eq!(replayed(&mut sequencer, 5), ["5"]);
    // The endpoint answers again, so no pause is needed.
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["6", "from 0"]);
}

#[test]
fn after_a_failed_replay_a_gap_behind_the_start_is_requested_again() {
    let mut sequencer = Sequencer::new(SequencerSettings {
        replay: true,
        ..SequencerSettings::default()
    });
    on(&mut sequencer, Input::Connected);
    assert_eq!(live(&mut sequencer, 0), [""; 0]);
    assert_eq!(live(&mut sequencer, 2), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::ReplayFailed), ["0", "hole", "2"]);
    assert_eq!(sequencer.state(), StreamState::Stale);
    let later = Moment::at(Duration::from_secs(2));
    assert_eq!(
        sequencer.on(later, Input::Tick),
        [Action::RequestReplay { from: 0 }]
    );
}

#[test]
fn a_restarted_publisher_is_fetched_once() {
    let mut sequencer = following(true);
    on(&mut sequencer, Input::Disconnected);
    on(&mut sequencer, Input::Resync);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 2"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["from 0"]);
    assert_eq!(replayed(&mut sequencer, 0), ["clear", "0"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
}

#[test]
fn a_failed_resync_keeps_the_known_blocks_and_is_retried() {
    let mut sequencer = following(true);
    on(&mut sequencer, Input::Resync);
    assert_eq!(on(&mut sequencer, Input::ReplayFailed), [""; 0]);
    assert_eq!(sequencer.state(), StreamState::Stale);
    let later = Moment::at(Duration::from_secs(2));
    assert_eq!(
        sequencer.on(later, Input::Tick),
        [Action::RequestReplay { from: 0 }]
    );
}
