//! The batches of a store's master, sequenced by their numbers.

use std::{fs, path::Path};

use contract_id::contract;
use kv_blocks::{EngineHash, IndexUpdate, Moment, NamedBlocks, RemovedBlocks, Tier};
use kv_events::{Action, Codec, Input, Sequencer, SequencerSettings, vllm};

/// The key of the recorded object, which is the engine hash of a block.
const KEY: EngineHash = EngineHash(16_863_443_419_780_771_464);

fn fixture(name: &str) -> Vec<u8> {
    fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/kv_events")
            .join(name),
    )
    .unwrap()
}

fn followed() -> Sequencer {
    let mut sequencer = Sequencer::new(SequencerSettings {
        codec: Codec::Mooncake,
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

#[test]
#[contract("MC10")]
fn batches_of_a_store_add_tiers_to_known_blocks() {
    let mut store = followed();
    let named = NamedBlocks {
        hashes: vec![KEY],
        tier: Tier::Host,
    };
    let stored = live(
        &mut store,
        0,
        &fixture("mooncake_master_stored_u64_key.msgpack"),
    );
    assert_eq!(stored, [Action::Apply(IndexUpdate::Named(named))]);
    // Its clock counts milliseconds.
    assert_eq!(store.last_batch_ts(), Some(1_763_656_800.125));

    let opaque = live(
        &mut store,
        1,
        &fixture("mooncake_master_stored_opaque_key.msgpack"),
    );
    let named = NamedBlocks {
        hashes: vec![EngineHash(0x2cea_bcfa_e6d3_32ea)],
        tier: Tier::Disk,
    };
    assert_eq!(opaque, [Action::Apply(IndexUpdate::Named(named))]);

    let removed = live(&mut store, 2, &fixture("mooncake_master_removed.msgpack"));
    assert_eq!(
        removed,
        [Action::Apply(IndexUpdate::Removed(RemovedBlocks {
            hashes: vec![KEY],
            tier: Tier::Host
        }))]
    );
    let counts = store.counts();
    assert_eq!(
        (
            counts.batches,
            counts.events,
            counts.kinds.stored,
            counts.kinds.removed
        ),
        (3, 3, 2, 1)
    );
}

#[test]
fn lost_and_broken_batches_of_a_store_are_holes_and_a_lower_number_is_a_restart() {
    let mut store = followed();
    let stored = fixture("mooncake_master_stored_u64_key.msgpack");
    live(&mut store, 0, &stored);
    assert_eq!(live(&mut store, 1, b"garbage"), [Action::Loss]);
    assert!(matches!(
        &live(&mut store, 4, &stored)[..],
        [Action::Loss, Action::Apply(_)]
    ));
    assert_eq!(
        (
            store.counts().gaps,
            store.counts().lost_batches,
            store.counts().decode_errors
        ),
        (1, 2, 1)
    );
    assert!(matches!(
        &live(&mut store, 0, &stored)[..],
        [Action::Clear, Action::Apply(_)]
    ));
    assert_eq!(store.epoch(), 2);
}

#[test]
fn the_rank_of_a_batch_is_read_without_decoding_its_events() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kv_events");
    let mut ranks = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "msgpack")
        {
            let payload = fs::read(&path).unwrap();
            if let Ok(batch) = vllm::decode(&payload) {
                assert_eq!(vllm::rank_of(&payload), batch.dp_rank, "{}", path.display());
                ranks.extend(batch.dp_rank);
            }
        }
    }
    assert!(ranks.len() > 50 && ranks.contains(&1), "{ranks:?}");
}
