//! Everything fetched anew, because somebody asked for it.

use std::time::Duration;

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    vllm::{EventLayout, HashForm, WireEvent, WireRemoved, encode},
};

/// What was done, one word each: the number of a batch applied, `clear`, `hole`, or `from N` for a replay asked for.
fn on(sequencer: &mut Sequencer, input: Input<'_>) -> Vec<String> {
    let word = |action| match action {
        Action::Apply(IndexUpdate::Removed(removed)) => removed.hashes[0].0.to_string(),
        Action::Apply(other) => panic!("{other:?}"),
        Action::Clear => "clear".to_owned(),
        Action::Loss => "hole".to_owned(),
        Action::RequestReplay { from } => format!("from {from}"),
    };
    sequencer
        .on(Moment::START, input)
        .into_iter()
        .map(word)
        .collect()
}

/// One removal, whose name is the batch's number.
fn payload(seq: u64) -> Vec<u8> {
    let removed = WireRemoved {
        hashes: vec![seq.into()],
        medium: None,
    };
    encode(
        1.0,
        Some(0),
        &[WireEvent::Removed(removed)],
        EventLayout::Map,
        HashForm::Int,
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

/// A stream that is up to date at number 2.
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
fn what_is_known_goes_when_the_history_comes_and_live_batches_wait_for_it() {
    let mut sequencer = following(true);
    assert_eq!(on(&mut sequencer, Input::Resync), ["from 0"]);
    assert_eq!(sequencer.state(), StreamState::Replaying);
    assert_eq!(on(&mut sequencer, Input::Resync), [""; 0], "one at a time");
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
fn without_a_history_what_is_known_stays_and_the_numbers_go_on() {
    let mut sequencer = following(false);
    assert_eq!(on(&mut sequencer, Input::Resync), ["hole"]);
    assert_eq!(sequencer.state(), StreamState::Live);
    assert_eq!(
        live(&mut sequencer, 2),
        [""; 0],
        "a duplicate is none the less one"
    );
    assert_eq!(live(&mut sequencer, 4), ["hole", "4"]);

    // A replay endpoint that keeps nothing is no better.
    let mut sequencer = following(true);
    on(&mut sequencer, Input::Resync);
    assert_eq!(live(&mut sequencer, 3), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["hole", "3"]);
    assert_eq!(sequencer.state(), StreamState::Live);
}

#[test]
#[contract("MC11")]
fn a_history_whose_beginning_is_gone_is_gone_over_once_more_and_clears_nothing() {
    let mut sequencer = following(true);
    assert_eq!(live(&mut sequencer, 3), ["3"]);
    assert_eq!(on(&mut sequencer, Input::Resync), ["from 0"]);
    assert_eq!(live(&mut sequencer, 4), [""; 0]);
    assert_eq!(replayed(&mut sequencer, 2), ["hole", "2"]);
    assert_eq!(
        replayed(&mut sequencer, 3),
        ["3", "hole"],
        "the repetition ends with what was known"
    );
    assert_eq!(replayed(&mut sequencer, 4), ["4"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
    assert_eq!(live(&mut sequencer, 5), ["5"]);
    assert_eq!(
        (sequencer.state(), sequencer.counts().restarts),
        (StreamState::Live, 0)
    );

    // Not even the last batch is there any more: nothing is repeated.
    on(&mut sequencer, Input::Resync);
    assert_eq!(replayed(&mut sequencer, 8), ["hole", "8"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
    assert_eq!(sequencer.counts().lost_batches, 2);
}

#[test]
fn a_repetition_that_breaks_off_ends_all_the_same_where_it_should() {
    let mut sequencer = following(true);
    (3..6).for_each(|seq| drop(live(&mut sequencer, seq)));
    on(&mut sequencer, Input::Resync);
    assert_eq!(replayed(&mut sequencer, 2), ["hole", "2"]);
    on(&mut sequencer, Input::Disconnected);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 2"]);
    assert_eq!(replayed(&mut sequencer, 2), [""; 0]);
    assert_eq!(replayed(&mut sequencer, 3), ["3"]);
    assert_eq!(on(&mut sequencer, Input::ReplayFailed), [""; 0]);
    // Meanwhile the publisher has dropped more.
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
fn a_repetition_that_brings_something_else_is_of_another_life() {
    // Other bytes under the last number; or it ends before that number.
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
fn what_is_asked_for_during_a_repair_comes_behind_it() {
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
        "once is enough"
    );
}

#[test]
fn what_is_asked_for_without_a_connection_comes_with_the_next_one() {
    let mut sequencer = following(true);
    on(&mut sequencer, Input::Disconnected);
    assert_eq!(on(&mut sequencer, Input::Resync), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 2"]);
    assert_eq!(replayed(&mut sequencer, 2), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["from 0"]);
    // A connection that is new fetches everything anyway.
    let mut sequencer = Sequencer::new(SequencerSettings {
        replay: true,
        ..SequencerSettings::default()
    });
    assert_eq!(on(&mut sequencer, Input::Resync), [""; 0]);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 0"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
}

#[test]
fn one_that_the_connection_was_lost_in_comes_with_the_next_one() {
    // Before its first batch, in its middle, and after it has failed.
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
        // Had once, it is over.
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
fn a_repair_that_succeeds_does_not_make_up_for_one_that_failed() {
    let mut sequencer = following(true);
    assert_eq!(live(&mut sequencer, 4), ["from 3"]);
    assert_eq!(on(&mut sequencer, Input::ReplayFailed), ["hole", "4"]);
    assert_eq!(live(&mut sequencer, 6), ["from 5"]);
    assert_eq!(replayed(&mut sequencer, 5), ["5"]);
    // The endpoint answers again, so there is no need to wait.
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["6", "from 0"]);
}

#[test]
fn a_replay_that_failed_matters_to_what_is_missing_behind_the_start() {
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
fn a_publisher_that_starts_anew_is_fetched_once() {
    let mut sequencer = following(true);
    on(&mut sequencer, Input::Disconnected);
    on(&mut sequencer, Input::Resync);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 2"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["from 0"]);
    assert_eq!(replayed(&mut sequencer, 0), ["clear", "0"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), [""; 0]);
}

#[test]
fn one_that_fails_leaves_what_is_known_and_is_tried_again() {
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
