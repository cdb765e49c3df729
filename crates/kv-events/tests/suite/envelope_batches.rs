//! Envelopes in the batches of a publisher's socket.

use std::{fs, path::Path, time::Duration};

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment, Tier};
use kv_events::{
    Action, Codec, Input, Sequencer, SequencerSettings,
    standard::{
        StandardChange, StandardEvent, StreamKey, StreamOutput, encode_json, encode_msgpack,
    },
};

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kv_events");
    fs::read(folder.join(name)).unwrap()
}

fn followed(codec: Codec) -> Sequencer {
    let mut sequencer = Sequencer::new(SequencerSettings {
        codec,
        ..SequencerSettings::default()
    });
    sequencer.on(Moment::START, Input::Connected);
    sequencer
}

fn live(sequencer: &mut Sequencer, seq: u64, payload: &[u8]) -> Vec<Action> {
    sequencer.on(
        Moment::START,
        Input::Live {
            seq: Some(seq),
            payload,
        },
    )
}

fn stored(event_id: u64, medium: &str) -> StandardEvent {
    StandardEvent {
        event_id,
        timestamp_ms: None,
        stream: StreamKey {
            model: Some("m".into()),
            block_size: Some(16),
            medium: Some(medium.into()),
            ..StreamKey::default()
        },
        change: StandardChange::Stored {
            seq_hashes: vec![event_id + 100],
            base_block_idx: Some(0),
            parent_hash: None,
            token_ids: None,
        },
        object_key: None,
    }
}

/// Returns the numbers of the delivered envelopes.
fn delivered(actions: &[Action]) -> Vec<u64> {
    let id = |action: &Action| match action {
        Action::Envelope(StreamOutput::Event(event)) => Some(event.event_id),
        _ => None,
    };
    actions.iter().filter_map(id).collect()
}

#[test]
#[contract("MC8", "MC11")]
fn each_payload_is_read_in_its_own_form() {
    let mut stream = followed(Codec::VllmOrStandard);
    let engine = live(
        &mut stream,
        0,
        &fixture("vllm_0_24_stored_root_map.msgpack"),
    );
    assert!(matches!(
        engine[..],
        [Action::Apply(IndexUpdate::Stored(_))]
    ));
    let root = live(&mut stream, 1, &fixture("rfc1527_stored_root.msgpack"));
    assert_eq!(delivered(&root), [42]);
    let array = live(&mut stream, 2, &fixture("vllm_0_22_stored_full.msgpack"));
    assert!(matches!(array[..], [Action::Apply(_)]));
    let json = encode_json(&stored(7, "cpu"));
    assert_eq!(delivered(&live(&mut stream, 3, json.as_bytes())), [7]);
    let list = format!("[{json}, {}]", encode_json(&stored(8, "cpu")));
    assert_eq!(delivered(&live(&mut stream, 4, list.as_bytes())), [8]);
    let counts = stream.counts();
    assert_eq!((counts.events, counts.duplicates), (6, 1));
    assert_eq!(counts.decode_errors, 0, "{:?}", stream.last_error());
}

#[test]
#[contract("MC8", "MC10")]
fn a_store_that_sends_dimensions_is_told_from_the_master() {
    let mut store = followed(Codec::Mooncake);
    let names = live(
        &mut store,
        0,
        &fixture("mooncake_master_stored_u64_key.msgpack"),
    );
    assert!(matches!(names[..], [Action::Apply(IndexUpdate::Named(_))]));
    let envelope = live(&mut store, 1, &fixture("rfc1527_stored_root.msgpack"));
    assert_eq!(delivered(&envelope), [42]);
    let opaque = live(
        &mut store,
        2,
        &fixture("mooncake_master_stored_opaque_key.msgpack"),
    );
    assert!(matches!(opaque[..], [Action::Apply(IndexUpdate::Named(_))]));
}

#[test]
#[contract("MC8")]
fn an_event_that_cannot_be_read_uses_up_its_number() {
    let mut stream = followed(Codec::VllmOrStandard);
    let good = |id| encode_json(&stored(id, "gpu"));
    for bad in [
        good(2).replace("[102]", "\"none\""),
        good(2).replace("\"base_block_idx\":0", "\"base_block_idx\":null"),
        good(2).replace("\"stored\"", "\"moved\""),
        good(2).replace("\"token_ids\":null", "\"token_ids\":[-1]"),
    ] {
        let mut stream = followed(Codec::VllmOrStandard);
        let list = format!("[{}, {bad}, {}]", good(1), good(3));
        let actions = live(&mut stream, 0, list.as_bytes());
        assert_eq!(delivered(&actions), [1, 3], "{bad}");
        let counts = stream.counts();
        assert_eq!((counts.decode_errors, counts.gaps), (1, 0), "{bad}");
        assert!(stream.last_error().is_some());
    }
    // Out of order, too: the third waits for the second, which cannot be read.
    let early = format!("[{}, {}]", good(1), good(3));
    assert_eq!(delivered(&live(&mut stream, 0, early.as_bytes())), [1]);
    let bad = good(2).replace("[102]", "1");
    assert_eq!(delivered(&live(&mut stream, 1, bad.as_bytes())), [3]);
    // Without a readable stream its number is unknown: the next event waits for it.
    let nowhere = good(4).replace("\"block_size\":16", "\"block_size\":0");
    live(&mut stream, 2, nowhere.as_bytes());
    assert_eq!(delivered(&live(&mut stream, 3, good(5).as_bytes())), [0; 0]);
    let later = Moment::at(Duration::from_secs(3));
    assert_eq!(delivered(&stream.on(later, Input::Tick)), [5]);
    assert_eq!(stream.counts().gaps, 1);
}

#[test]
#[contract("MC8")]
fn events_of_a_lost_batch_are_not_waited_for() {
    let mut stream = followed(Codec::VllmOrStandard);
    let batch = |ids: &[u64]| {
        let events: Vec<_> = ids.iter().map(|id| stored(*id, "gpu")).collect();
        encode_msgpack(&events)
    };
    assert_eq!(delivered(&live(&mut stream, 0, &batch(&[1, 2]))), [1, 2]);
    let actions = live(&mut stream, 2, &batch(&[5, 6]));
    assert_eq!(actions[0], Action::Loss);
    assert_eq!(delivered(&actions), [5, 6]);
    // A new life numbers its events anew.
    let actions = live(&mut stream, 0, &batch(&[1]));
    assert_eq!(actions[0], Action::Clear);
    assert_eq!(delivered(&actions), [1]);
}

#[test]
#[contract("MC9", "MC10")]
fn a_cleared_event_of_the_master_empties_the_tiers_that_it_has_named_blocks_in() {
    let mut store = followed(Codec::Mooncake);
    let cleared = |medium: Option<&str>| {
        let event = StandardEvent {
            stream: StreamKey {
                medium: medium.map(Into::into),
                ..StreamKey::default()
            },
            change: StandardChange::Cleared,
            ..stored(9, "cpu")
        };
        encode_msgpack(&[event])
    };
    let tiers = |actions: &[Action]| -> Vec<Tier> {
        let tier = |action: &Action| match action {
            Action::Apply(IndexUpdate::ClearedTier(tier)) => *tier,
            other => panic!("{other:?}"),
        };
        actions.iter().map(tier).collect()
    };
    assert_eq!(tiers(&live(&mut store, 0, &cleared(None))), Vec::new());
    live(
        &mut store,
        1,
        &fixture("mooncake_master_stored_u64_key.msgpack"),
    );
    live(
        &mut store,
        2,
        &fixture("mooncake_master_stored_opaque_key.msgpack"),
    );
    assert_eq!(
        tiers(&live(&mut store, 3, &cleared(Some("cpu")))),
        [Tier::Host]
    );
    assert_eq!(
        tiers(&live(&mut store, 4, &cleared(Some("gpu")))),
        Vec::new()
    );
    let all = live(&mut store, 5, &cleared(None));
    assert_eq!(tiers(&all), [Tier::Host, Tier::Disk]);
}

#[test]
#[contract("MC9", "MC10")]
fn a_masters_media_beyond_the_bound_are_one_that_is_cleared_with_the_others() {
    let mut store = followed(Codec::Mooncake);
    let send = |store: &mut Sequencer, seq, medium: Option<&str>, change| {
        let event = StandardEvent {
            stream: StreamKey {
                medium: medium.map(Into::into),
                ..StreamKey::default()
            },
            change,
            ..stored(seq, "cpu")
        };
        let actions = live(store, seq, &encode_msgpack(&[event]));
        let label = |action: &Action| match action {
            Action::ApplyLabelled { label, .. } => Some(label.to_string()),
            Action::Apply(_) => None,
            other => panic!("{other:?}"),
        };
        actions.iter().map(label).collect::<Vec<_>>()
    };
    let names: Vec<_> = (0..66).map(|number| format!("pool {number}")).collect();
    let told_apart = |at: usize| (at < 64).then(|| names[at].clone());
    for (seq, name) in (0..).zip(&names) {
        let sent = send(&mut store, seq, Some(name), stored(seq, name).change);
        assert_eq!(sent, [told_apart(usize::try_from(seq).unwrap())], "{name}");
    }
    let removed = StandardChange::Removed {
        seq_hashes: vec![165],
        base_block_idx: None,
    };
    assert_eq!(send(&mut store, 66, Some("pool 65"), removed), [None]);
    let cleared = || StandardChange::Cleared;
    assert_eq!(
        send(&mut store, 67, Some("POOL 63"), cleared()),
        [told_apart(63)]
    );
    assert_eq!(send(&mut store, 68, Some("pool 65"), cleared()), [None]);
    // A known medium finds a place, too.
    send(&mut store, 69, Some("cpu"), stored(69, "cpu").change);
    let all = send(&mut store, 70, None, cleared());
    assert_eq!(all.len(), 66);
    assert_eq!(all.iter().flatten().count(), 64);
}
