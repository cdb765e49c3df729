//! Batches of a shared log are applied only as the proven continuation of what is there.

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment, StreamPosition};
use kv_events::{
    AcceptedRecord, Action, Continuation, ContinuationOutcome, Input, Sequencer, SequencerSettings,
    vllm::{EventEncoding, WireEvent, WireRemoved, encode},
};

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

fn digest(life: f64, seq: u64) -> Option<u64> {
    Some(StreamPosition::of(seq, &payload(life, seq)).digest)
}

fn sequencer() -> Sequencer {
    Sequencer::new(SequencerSettings {
        replay: true,
        ..SequencerSettings::default()
    })
}

/// Offers batch `seq` of a life with this digest of the one before; returns the outcome in a word.
fn offer(sequencer: &mut Sequencer, life: f64, seq: u64, previous: Option<u64>) -> &'static str {
    let payload = payload(life, seq);
    let batch = Continuation {
        seq,
        previous,
        payload: &payload,
    };
    match sequencer.continue_with(Moment::START, batch) {
        ContinuationOutcome::Applied(actions) => {
            let [Action::Apply(IndexUpdate::Removed(removed))] = &actions[..] else {
                panic!("{actions:?}");
            };
            assert_eq!(removed.hashes[0].0, seq);
            "applied"
        }
        ContinuationOutcome::Repeated => "repeated",
        ContinuationOutcome::Unproven => "unproven",
        ContinuationOutcome::Busy => "busy",
    }
}

#[test]
#[contract("F54")]
fn only_the_next_batch_with_the_digest_of_the_last_one_is_applied() {
    let mut sequencer = sequencer();
    let sequencer = &mut sequencer;
    assert_eq!(
        offer(sequencer, 1.0, 5, digest(1.0, 4)),
        "unproven",
        "nothing is known"
    );
    assert_eq!(
        offer(sequencer, 1.0, 0, None),
        "applied",
        "a life begins with 0"
    );
    assert_eq!(offer(sequencer, 1.0, 0, None), "repeated");
    assert_eq!(offer(sequencer, 1.0, 1, digest(1.0, 0)), "applied");
    for (life, seq, previous, why) in [
        (1.0, 2, None, "without a proof"),
        (2.0, 2, digest(2.0, 1), "of another life"),
        (1.0, 3, digest(1.0, 2), "behind a gap"),
        (1.0, 0, None, "of the past"),
        (2.0, 0, None, "the beginning of another life"),
        (2.0, 1, digest(2.0, 0), "another batch of the same number"),
    ] {
        assert_eq!(offer(sequencer, life, seq, previous), "unproven", "{why}");
    }
    assert_eq!(
        offer(sequencer, 1.0, 2, digest(1.0, 1)),
        "applied",
        "nothing changed"
    );
}

#[test]
fn during_a_replay_batches_wait_and_then_continue_behind_it() {
    let mut sequencer = sequencer();
    offer(&mut sequencer, 1.0, 0, None);
    let actions = sequencer.on(Moment::START, Input::Connected);
    assert_eq!(actions, [Action::RequestReplay { from: 0 }]);
    assert_eq!(offer(&mut sequencer, 1.0, 2, digest(1.0, 1)), "busy");
    for seq in 0..2 {
        let payload = payload(1.0, seq);
        let batch = Input::ReplayBatch {
            seq,
            payload: &payload,
        };
        sequencer.on(Moment::START, batch);
    }
    sequencer.on(Moment::START, Input::ReplayEnd);
    assert_eq!(offer(&mut sequencer, 1.0, 2, digest(1.0, 1)), "applied");
}

#[test]
fn accepted_batches_prove_to_another_reader_what_they_continue() {
    let mut owner = sequencer();
    owner.set_accepted_record(AcceptedRecord::Batches);
    owner.on(Moment::START, Input::Connected);
    owner.on(Moment::START, Input::ReplayEnd);
    let mut follower = sequencer();
    for seq in [0, 1, 2] {
        let payload = payload(1.0, seq);
        let live = Input::Live {
            seq: Some(seq),
            payload: &payload,
        };
        owner.on(Moment::START, live);
        let accepted = owner.take_accepted();
        let [batch] = &accepted[..] else {
            panic!("{accepted:?}");
        };
        let outcome = follower.continue_with(
            Moment::START,
            Continuation {
                seq: batch.position.seq,
                previous: batch.previous,
                payload: &batch.payload,
            },
        );
        assert!(matches!(outcome, ContinuationOutcome::Applied(_)), "{seq}");
    }
    assert_eq!(owner.position(), follower.position());
    owner.set_accepted_record(AcceptedRecord::Positions);
    let payload = payload(1.0, 3);
    let live = Input::Live {
        seq: Some(3),
        payload: &payload,
    };
    owner.on(Moment::START, live);
    let accepted = owner.take_accepted();
    assert_eq!(accepted[0].position, StreamPosition::of(3, &payload));
    assert!(accepted[0].payload.is_empty());
    assert!(owner.take_accepted().is_empty());
}

#[test]
fn a_batch_behind_a_loss_proves_nothing() {
    let mut owner = Sequencer::new(SequencerSettings::default());
    owner.set_accepted_record(AcceptedRecord::Batches);
    for seq in [0, 2] {
        let payload = payload(1.0, seq);
        let live = Input::Live {
            seq: Some(seq),
            payload: &payload,
        };
        owner.on(Moment::START, live);
    }
    let accepted = owner.take_accepted();
    assert_eq!((accepted[1].position.seq, accepted[1].previous), (2, None));
}
