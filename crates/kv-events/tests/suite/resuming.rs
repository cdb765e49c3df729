//! Blocks that an earlier process saved are kept only if the stream continues at their position.

use kv_blocks::{IndexUpdate, Moment, StreamPosition};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    vllm::{EventEncoding, WireEvent, WireRemoved, encode},
};

/// Returns a batch of a publisher's life with one removal, whose hash is the batch's number.
fn payload(life: f64, seq: u64) -> Vec<u8> {
    let removed = WireRemoved {
        hashes: vec![seq.into()],
        medium: None,
    };
    encode(
        life,
        Some(0),
        &[WireEvent::Removed(removed)],
        EventEncoding::CURRENT,
    )
}

/// Feeds an input; returns the actions, one word each: the number of an applied batch, `clear`,
/// `loss`, `confirm`, or `from N` for a requested replay.
fn on(sequencer: &mut Sequencer, input: Input<'_>) -> Vec<String> {
    let label = |action| match action {
        Action::Apply(IndexUpdate::Removed(removed)) => removed.hashes[0].0.to_string(),
        Action::Clear => "clear".to_owned(),
        Action::Loss => "loss".to_owned(),
        Action::Confirm => "confirm".to_owned(),
        Action::RequestReplay { from } => format!("from {from}"),
        other => panic!("{other:?}"),
    };
    let actions = sequencer.on(Moment::START, input);
    actions.into_iter().map(label).collect()
}

fn live(sequencer: &mut Sequencer, life: f64, seq: u64) -> Vec<String> {
    let payload = payload(life, seq);
    on(
        sequencer,
        Input::Live {
            seq: Some(seq),
            payload: &payload,
        },
    )
}

fn replayed(sequencer: &mut Sequencer, life: f64, seq: u64) -> Vec<String> {
    let payload = payload(life, seq);
    on(
        sequencer,
        Input::ReplayBatch {
            seq,
            payload: &payload,
        },
    )
}

/// The position of batch 7 of life 1.
fn saved() -> StreamPosition {
    StreamPosition::of(7, &payload(1.0, 7))
}

fn resuming(replay: bool) -> Sequencer {
    Sequencer::new(SequencerSettings {
        replay,
        resume: Some(saved()),
        ..SequencerSettings::default()
    })
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_publisher_with_the_same_batch_is_resumed_behind_it() {
    let mut sequencer = resuming(true);
    assert_eq!(sequencer.position(), Some(saved()));
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 7"]);
    assert_eq!(live(&mut sequencer, 1.0, 10), NOTHING);
    assert_eq!(replayed(&mut sequencer, 1.0, 7), NOTHING);
    assert_eq!(replayed(&mut sequencer, 1.0, 8), ["8"]);
    assert_eq!(replayed(&mut sequencer, 1.0, 9), ["9"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["confirm", "10"]);
    assert_eq!(sequencer.state(), StreamState::Live);
    assert_eq!(
        sequencer.position(),
        Some(StreamPosition::of(10, &payload(1.0, 10)))
    );
    assert_eq!(
        (
            sequencer.counts().restarts,
            sequencer.counts().lost_batches,
            sequencer.epoch()
        ),
        (0, 0, 1)
    );
}

#[test]
fn a_publisher_that_has_published_nothing_since_is_resumed() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    assert_eq!(replayed(&mut sequencer, 1.0, 7), NOTHING);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["confirm"]);
    assert_eq!(sequencer.position(), Some(saved()));
    assert_eq!(
        live(&mut sequencer, 1.0, 8),
        ["8"],
        "a part of it may be applied already"
    );
    assert_eq!(live(&mut sequencer, 1.0, 9), ["9"]);
}

#[test]
fn batches_in_front_of_the_position_prove_nothing() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    assert_eq!(replayed(&mut sequencer, 1.0, 5), NOTHING);
    assert_eq!(replayed(&mut sequencer, 1.0, 6), NOTHING);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["clear", "from 0"]);
}

#[test]
fn a_publisher_with_another_batch_at_the_position_has_restarted_and_its_blocks_are_dropped() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    assert_eq!(replayed(&mut sequencer, 2.0, 7), ["clear", "from 0"]);
    assert_eq!(replayed(&mut sequencer, 2.0, 0), ["0"]);
    assert_eq!(
        on(&mut sequencer, Input::ReplayEnd),
        NOTHING,
        "there is nothing to confirm"
    );
    assert_eq!(sequencer.state(), StreamState::Live);
}

#[test]
fn a_publisher_without_the_batch_drops_the_blocks() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    // It has restarted and published less, or nothing.
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["clear", "from 0"]);
    assert_eq!(replayed(&mut sequencer, 2.0, 0), ["0"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), NOTHING);
}

#[test]
fn a_publisher_that_keeps_less_history_drops_the_blocks() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    assert_eq!(replayed(&mut sequencer, 1.0, 9), ["clear", "from 0"]);
    assert_eq!(replayed(&mut sequencer, 1.0, 9), ["9"]);
    assert_eq!(replayed(&mut sequencer, 1.0, 10), ["10"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), NOTHING);
}

#[test]
fn a_publisher_without_a_replay_endpoint_drops_the_blocks_at_once() {
    let mut sequencer = resuming(false);
    assert_eq!(on(&mut sequencer, Input::Connected), ["clear"]);
    assert_eq!(live(&mut sequencer, 1.0, 8), ["8"]);
    assert_eq!(sequencer.position(), None, "nobody could continue there");
}

#[test]
fn a_failed_replay_drops_the_blocks_and_is_tried_again() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    live(&mut sequencer, 1.0, 8);
    assert_eq!(on(&mut sequencer, Input::ReplayFailed), ["clear", "8"]);
    assert_eq!(sequencer.state(), StreamState::Stale);
}

#[test]
fn a_connection_lost_before_the_proof_leaves_it_to_the_next_one() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    assert_eq!(on(&mut sequencer, Input::Disconnected), NOTHING);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 7"]);
    assert_eq!(replayed(&mut sequencer, 1.0, 7), NOTHING);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), ["confirm"]);
}

#[test]
fn a_connection_lost_after_the_proof_confirms_only_what_the_next_one_recognises() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    replayed(&mut sequencer, 1.0, 7);
    assert_eq!(replayed(&mut sequencer, 1.0, 8), ["8"]);
    on(&mut sequencer, Input::Disconnected);
    assert_eq!(on(&mut sequencer, Input::Connected), ["from 8"]);
    assert_eq!(replayed(&mut sequencer, 2.0, 8), ["clear", "from 0"]);
    assert_eq!(replayed(&mut sequencer, 2.0, 0), ["0"]);
    assert_eq!(on(&mut sequencer, Input::ReplayEnd), NOTHING);
}

#[test]
fn no_position_is_given_while_a_resync_repeats_batches() {
    let mut sequencer = resuming(true);
    on(&mut sequencer, Input::Connected);
    replayed(&mut sequencer, 1.0, 7);
    on(&mut sequencer, Input::ReplayEnd);
    assert_eq!(live(&mut sequencer, 1.0, 8), ["8"]);
    assert_eq!(on(&mut sequencer, Input::Resync), ["from 0"]);
    assert_eq!(replayed(&mut sequencer, 1.0, 6), ["loss", "6"]);
    assert_eq!(sequencer.position(), None);
    replayed(&mut sequencer, 1.0, 7);
    assert_eq!(replayed(&mut sequencer, 1.0, 8), ["8", "loss"]);
    assert!(sequencer.position().is_some());
}
