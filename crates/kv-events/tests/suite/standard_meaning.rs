//! Effects of events of the standard contract on an index.

use std::{fs, path::PathBuf, sync::Arc};

use contract_id::contract;
use kv_blocks::{
    DpRank, EngineHash, HashScheme, IndexUpdate, Moment, NamedBlocks, Namespace, RemovedBlocks,
    SequenceHash, Target, Tier, WorkerId,
};
use kv_events::{
    standard::{
        EventRejection, HashKeyedUpdate, StandardChange, StandardEvent, StreamKey, decode_msgpack,
        to_hashed, to_named,
    },
    vllm,
};
use kv_index::{IndexSettings, KvIndex, Overlap};

const XXH3: HashScheme = HashScheme::Xxh3 { seed: 1337 };
const TARGET: Target = Target {
    worker: WorkerId(1),
    rank: DpRank(0),
};

fn payload(file: &str) -> Vec<u8> {
    fs::read(
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/kv_events")
            .join(file),
    )
    .unwrap()
}

fn fixture(file: &str) -> StandardEvent {
    decode_msgpack(&payload(file)).unwrap().remove(0).unwrap()
}

fn stream(medium: &str) -> StreamKey {
    StreamKey {
        model: Some("llama-3.1-8b".into()),
        block_size: Some(16),
        medium: Some(medium.into()),
        ..StreamKey::default()
    }
}

fn event(change: StandardChange) -> StandardEvent {
    StandardEvent {
        event_id: 1,
        timestamp_ms: None,
        stream: stream("gpu"),
        change,
        object_key: None,
    }
}

fn tokens(blocks: std::ops::Range<u32>) -> Vec<u32> {
    (blocks.start * 16 + 1..=blocks.end * 16).collect()
}

fn chain(scheme: HashScheme) -> Vec<u64> {
    let size = kv_blocks::BlockSize::new(16).unwrap();
    scheme
        .chain(None, &tokens(0..4), size)
        .iter()
        .map(|hash| hash.0)
        .collect()
}

fn index() -> KvIndex {
    let index = KvIndex::new(IndexSettings {
        memory_budget: 8 << 20,
        ..IndexSettings::default()
    });
    index.register(TARGET, Arc::from("llama-3.1-8b"));
    index
}

fn namespace() -> Namespace {
    stream("gpu").namespace().unwrap()
}

fn apply(index: &KvIndex, event: &StandardEvent) {
    let namespace = event.stream.namespace().unwrap();
    match to_hashed(event, XXH3).unwrap() {
        HashKeyedUpdate::Stored {
            parent,
            hashes,
            tier,
        } => {
            index.store_hashes(TARGET, &namespace, parent, &hashes, tier);
        }
        HashKeyedUpdate::Removed { hashes, tier } => {
            index.remove_hashes(TARGET, &namespace, &hashes, tier);
        }
        HashKeyedUpdate::Cleared { tier } => index.clear_stream(TARGET, &namespace, tier),
    }
}

/// Returns the number of blocks of the prompt 1..=64 in each tier.
fn present(index: &KvIndex) -> [u32; 4] {
    let chain: Vec<_> = chain(XXH3).into_iter().map(SequenceHash).collect();
    index
        .lookup(&namespace(), &chain, Moment::START)
        .first()
        .map_or([0; 4], |found: &Overlap| found.present)
}

#[test]
#[contract("MC13", "MC9")]
fn blocks_named_by_hash_are_found_by_their_tokens() {
    let index = index();
    apply(&index, &fixture("rfc1527_stored_root.msgpack"));
    assert_eq!(present(&index), [4, 0, 0, 0]);
    apply(&index, &fixture("rfc1527_removed.msgpack"));
    assert_eq!(present(&index), [3, 0, 0, 0]);
    apply(&index, &fixture("rfc1527_cleared.msgpack"));
    assert_eq!(present(&index), [0; 4]);
}

#[test]
#[contract("MC9")]
fn the_parent_alone_places_a_store_and_a_clear_affects_one_medium_only() {
    let index = index();
    let hashes = chain(XXH3);
    for medium in ["gpu", "cpu"] {
        let root = StandardChange::Stored {
            seq_hashes: hashes[..2].to_vec(),
            base_block_idx: Some(0),
            parent_hash: None,
            token_ids: None,
        };
        apply(
            &index,
            &StandardEvent {
                stream: stream(medium),
                ..event(root)
            },
        );
        let child = StandardEvent {
            stream: stream(medium),
            ..fixture("rfc1527_stored_parent_only.msgpack")
        };
        apply(&index, &child);
    }
    assert_eq!(present(&index), [4, 4, 0, 0]);
    apply(&index, &fixture("rfc1527_cleared.msgpack"));
    assert_eq!(present(&index), [0, 4, 0, 0]);
}

#[test]
#[contract("MC13")]
fn tokens_are_rehashed_and_a_mismatch_is_refused() {
    let child = fixture("rfc1527_stored_child_with_tokens.msgpack");
    assert!(
        matches!(to_hashed(&child, XXH3), Ok(HashKeyedUpdate::Stored { ref hashes, .. }) if hashes.len() == 3)
    );
    let StandardChange::Stored {
        seq_hashes,
        parent_hash,
        token_ids,
        ..
    } = &child.change
    else {
        panic!("no store")
    };
    let changed = |at: usize, flipped: u32| {
        let mut tokens = token_ids.clone().unwrap();
        tokens[at] ^= flipped;
        let (seq_hashes, parent_hash) = (seq_hashes.clone(), *parent_hash);
        let change = StandardChange::Stored {
            seq_hashes,
            base_block_idx: Some(1),
            parent_hash,
            token_ids: Some(tokens),
        };
        to_hashed(
            &StandardEvent {
                change,
                ..child.clone()
            },
            XXH3,
        )
    };
    assert!(changed(0, 0).is_ok());
    assert!(matches!(
        changed(0, 1),
        Err(EventRejection::Mismatch { block: 0, .. })
    ));
    assert!(matches!(
        changed(47, 1),
        Err(EventRejection::Mismatch { block: 2, .. })
    ));
    let other_seed = to_hashed(&child, HashScheme::Xxh3 { seed: 7 }).unwrap_err();
    assert!(
        other_seed
            .to_string()
            .contains("block 0 of the event has the hash 12466389667045779788"),
        "{other_seed}"
    );
}

#[test]
#[contract("MC13")]
fn hashes_without_tokens_are_trusted_only_in_the_standard_scheme() {
    let root = fixture("rfc1527_stored_root.msgpack");
    assert!(to_hashed(&root, HashScheme::Xxh3 { seed: 7 }).is_ok());
    let refused = to_hashed(&root, HashScheme::Fnv1a).unwrap_err();
    assert_eq!(
        (&refused, refused.as_str()),
        (&EventRejection::NotStandard, "not_standard")
    );
    assert!(refused.to_string().contains("token_ids"));
    // With tokens any scheme works, if both sides use the same.
    let with_tokens = |scheme| {
        event(StandardChange::Stored {
            seq_hashes: chain(scheme),
            base_block_idx: Some(0),
            parent_hash: None,
            token_ids: Some(tokens(0..4)),
        })
    };
    assert!(to_hashed(&with_tokens(HashScheme::Fnv1a), HashScheme::Fnv1a).is_ok());
    assert!(to_hashed(&with_tokens(HashScheme::Fnv1a), XXH3).is_err());
}

#[test]
fn a_contradicting_event_is_refused_with_the_reason() {
    let stored = |seq_hashes: &[u64], base_block_idx, parent_hash, token_ids| {
        event(StandardChange::Stored {
            seq_hashes: seq_hashes.to_vec(),
            base_block_idx,
            parent_hash,
            token_ids,
        })
    };
    let why = |event: &StandardEvent| to_hashed(event, XXH3).unwrap_err().as_str();
    assert_eq!(why(&stored(&[1, 2, 1], Some(0), None, None)), "repeated");
    assert_eq!(why(&stored(&[1, 2], None, Some(2), None)), "repeated");
    assert_eq!(why(&stored(&[1, 2], Some(5), None, None)), "unplaced");
    assert_eq!(
        why(&stored(&[1, 2], Some(0), None, Some(tokens(0..1)))),
        "token_count"
    );
    assert_eq!(why(&stored(&[], Some(0), None, None)), "no_names");
    let no_size = StandardEvent {
        stream: StreamKey {
            block_size: None,
            ..stream("gpu")
        },
        ..stored(&[1], Some(0), None, Some(tokens(0..1)))
    };
    assert_eq!(why(&no_size), "no_block_size");
    assert_eq!(
        why(&event(StandardChange::Removed {
            seq_hashes: vec![],
            base_block_idx: None
        })),
        "no_names"
    );
}

#[test]
#[contract("MC9", "V9")]
fn a_publisher_with_its_own_hashes_is_followed_by_its_tokens() {
    let index = index();
    let stored = |names: &[u64], base, parent, blocks| {
        event(StandardChange::Stored {
            seq_hashes: names.to_vec(),
            base_block_idx: base,
            parent_hash: parent,
            token_ids: Some(tokens(blocks)),
        })
    };
    for event in [
        stored(&[71, 72], Some(0), None, 0..2),
        stored(&[73, 74], None, Some(72), 2..4),
    ] {
        assert!(to_hashed(&event, XXH3).is_err());
        index.apply(TARGET, &to_named(&event).unwrap());
    }
    assert_eq!(present(&index), [4, 0, 0, 0]);
    let removed = event(StandardChange::Removed {
        seq_hashes: vec![74],
        base_block_idx: Some(3),
    });
    index.apply(TARGET, &to_named(&removed).unwrap());
    assert_eq!(present(&index), [3, 0, 0, 0]);
    assert_eq!(
        to_named(&stored(&[9], Some(4), None, 0..1)),
        Err(EventRejection::Unplaced { base: 4 })
    );
    assert_eq!(
        to_named(&event(StandardChange::Cleared)),
        Ok(IndexUpdate::Cleared)
    );
}

#[test]
#[contract("MC10")]
fn the_stores_master_adds_tiers_to_known_blocks() {
    let name = EngineHash(16_863_443_419_780_771_464);
    let stored = fixture("mooncake_master_stored_u64_key.msgpack");
    assert_eq!(
        to_named(&stored),
        Ok(IndexUpdate::Named(NamedBlocks {
            hashes: vec![name],
            tier: Tier::Host
        }))
    );
    let removed = fixture("mooncake_master_removed.msgpack");
    assert_eq!(
        to_named(&removed),
        Ok(IndexUpdate::Removed(RemovedBlocks {
            hashes: vec![name],
            tier: Tier::Host
        }))
    );
    // Hashes alone count only for another tier.
    let on_device = StandardEvent {
        stream: stream("gpu"),
        ..stored.clone()
    };
    assert_eq!(to_named(&on_device), Err(EventRejection::OnDevice));
    let cleared = StandardEvent {
        change: StandardChange::Cleared,
        ..stored
    };
    assert_eq!(to_named(&cleared), Ok(IndexUpdate::ClearedTier(Tier::Host)));
}

#[test]
#[contract("MC10")]
fn an_object_key_that_ends_with_the_engines_digest_names_its_block() {
    let index = index();
    let engine = vllm::decode(&payload("vllm_0_33_full_report_then_removed.msgpack")).unwrap();
    index.apply(
        TARGET,
        &vllm::to_update(engine.events[0].as_ref().unwrap()).unwrap(),
    );
    assert_eq!(present(&index), [1, 0, 0, 0]);
    let stored = fixture("mooncake_master_stored_opaque_key.msgpack");
    index.apply(TARGET, &to_named(&stored).unwrap());
    assert_eq!(present(&index), [1, 0, 1, 0]);
    // The engine evicts it, the store still has it.
    index.apply(
        TARGET,
        &vllm::to_update(engine.events[2].as_ref().unwrap()).unwrap(),
    );
    assert_eq!(present(&index), [0, 0, 1, 0]);
    let (key, no_digest) = (stored.object_key.clone().unwrap(), "model@tp:0@part-17");
    for wrong in [
        no_digest,
        key.rsplit_once('@').unwrap().1,
        "model@2ceabcfae6d332ea",
    ] {
        let event = StandardEvent {
            object_key: Some(wrong.into()),
            ..stored.clone()
        };
        assert_eq!(to_named(&event), Err(EventRejection::NoNames), "{wrong}");
    }
}
