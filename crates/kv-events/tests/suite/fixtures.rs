//! Every payload of the fixture collection decodes as its manifest states.

use std::{fs, path::PathBuf};

use contract_id::contract;
use kv_blocks::{EngineHash, IndexUpdate, MediaHash, NamedBlocks, Tier};
use kv_events::{
    continuum, standard, trtllm,
    vllm::{
        BlockRemoved, BlockStored, EventBatch, ExtraKey, IgnoredReason, Normaliser, VllmEvent,
        WireTokens, decode, to_update,
    },
};
use serde_json::{Map, Value, json};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kv_events")
}

fn payload(file: &str) -> Vec<u8> {
    fs::read(folder().join(file)).unwrap()
}

fn payloads(class: &str) -> Vec<Value> {
    let manifest: Value = serde_json::from_slice(&payload("manifest.json")).unwrap();
    let all = manifest["payloads"].as_array().unwrap();
    all.iter()
        .filter(|entry| entry["class"] == class)
        .cloned()
        .collect()
}

fn updates(file: &str) -> Vec<Result<IndexUpdate, IgnoredReason>> {
    let mut normaliser = Normaliser::default();
    let batch = decode(&payload(file)).unwrap();
    batch
        .events
        .iter()
        .map(|event| {
            normaliser
                .update(event.as_ref().unwrap())
                .map_err(|ignored| ignored.reason)
        })
        .collect()
}

#[test]
#[contract("V11", "V12", "DY19", "V17", "MC8", "MC9")]
fn every_valid_payload_decodes_as_the_manifest_says() {
    let entries = payloads("valid");
    assert_eq!(entries.len(), 86);
    let mut standard_ones = 0;
    for entry in entries {
        let file = entry["file"].as_str().unwrap();
        if matches!(
            entry["wire_shape"].as_str(),
            Some("rfc-1527" | "mooncake-master")
        ) {
            assert_matches_manifest(file, entry["decodes_to"].as_array().unwrap());
            standard_ones += 1;
            continue;
        }
        let batch = decode(&payload(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        if let Some(envelope) = entry.get("envelope") {
            assert_eq!(
                json!(batch.dp_rank),
                envelope["data_parallel_rank"],
                "{file}"
            );
            assert_eq!(batch.ts, envelope["ts"].as_f64(), "{file}");
        }
        if let Some(expected) = entry["decodes_to"].as_array() {
            let expected: Vec<Value> = expected.iter().map(normal_form).collect();
            assert_eq!(as_json(&batch), expected, "{file}");
        } else {
            assert_eq!(file, "large_batch_512_blocks.msgpack");
        }
    }
    assert_eq!(standard_ones, 8);
}

/// Compares an envelope of the standard contract; in the manifest hashes are text and some fields
/// are left out.
fn assert_matches_manifest(file: &str, expected: &[Value]) {
    let events = standard::decode_msgpack(&payload(file)).unwrap();
    assert_eq!(events.len(), expected.len(), "{file}");
    for (event, expected) in events.iter().zip(expected) {
        let read: Value =
            serde_json::from_str(&standard::encode_json(event.as_ref().unwrap())).unwrap();
        for (key, expected) in expected.as_object().unwrap() {
            let read = match key.as_str() {
                "seq_hashes" => read[key]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|hash| json!(hash.to_string()))
                    .collect(),
                "parent_hash" if !expected.is_null() => json!(read[key].to_string()),
                _ => read[key].clone(),
            };
            assert_eq!(read, *expected, "{file}: {key}");
        }
    }
}

/// Each codec must refuse or ignore the payloads of the others.
#[test]
fn each_codec_fails_softly_on_the_payloads_of_the_others() {
    for class in ["valid", "malformed"] {
        for entry in payloads(class) {
            let file = entry["file"].as_str().unwrap();
            let bytes = payload(file);
            let is_standard = matches!(
                entry["wire_shape"].as_str(),
                Some("rfc-1527" | "mooncake-master")
            );
            if is_standard {
                let usable = decode(&bytes).map(|batch| batch.events.into_iter().flatten().count());
                // The store's master also writes the older field names, so its blocks are read as
                // placeholders.
                let is_alike = file.starts_with("mooncake");
                assert_eq!(usable.unwrap_or(0), usize::from(is_alike), "{file}");
            } else if let Ok(events) = standard::decode_msgpack(&bytes) {
                assert!(events.iter().all(Result::is_err), "{file}: {events:?}");
            }
            // One of them is JSON.
            assert!(
                trtllm::decode(&bytes).is_ok_and(|events| events.iter().all(Result::is_err))
                    == (file == "bad_not_msgpack_json.msgpack")
            );
            assert!(
                continuum::parse(Some("cache_created"), &bytes).is_err(),
                "{file}"
            );
        }
    }
}

#[test]
fn every_malformed_payload_loses_only_the_scope_in_the_manifest() {
    let entries = payloads("malformed");
    assert_eq!(entries.len(), 56);
    for entry in entries {
        let file = entry["file"].as_str().unwrap();
        let decoded = decode(&payload(file));
        let kinds =
            |batch: &EventBatch| -> Vec<bool> { batch.events.iter().map(Result::is_ok).collect() };
        match entry["scope"].as_str().unwrap() {
            "batch" => assert!(decoded.is_err(), "{file}"),
            "event" => {
                let batch = decoded.unwrap_or_else(|error| panic!("{file}: {error}"));
                assert_eq!(kinds(&batch), [false], "{file}");
            }
            "event (first and third may still be applied)" => {
                assert_eq!(kinds(&decoded.unwrap()), [true, false, true], "{file}");
            }
            "event (skip and count as unknown)" => {
                let batch = decoded.unwrap();
                assert!(
                    matches!(batch.events[..], [Ok(VllmEvent::Unknown { .. })]),
                    "{file}"
                );
                let reason = to_update(batch.events[0].as_ref().unwrap())
                    .unwrap_err()
                    .reason;
                assert_eq!(reason, IgnoredReason::UnknownTag);
            }
            "ts only: event may be applied, ts must not be used" => {
                let batch = decoded.unwrap();
                assert_eq!(batch.ts, None, "{file}");
                assert!(
                    !batch.events.is_empty() && kinds(&batch).iter().all(|fine| *fine),
                    "{file}"
                );
            }
            other => panic!("{file}: unknown scope {other}"),
        }
    }
}

#[test]
#[contract("V20")]
fn media_have_many_names_and_an_unknown_one_is_never_the_device() {
    let expected = [
        ("gpu", Tier::Device),
        ("gpu_lower", Tier::Device),
        ("cpu", Tier::Host),
        ("cpu_lower", Tier::Host),
        ("cpu_pinned", Tier::Host),
        ("cpu_tier1", Tier::Host),
        ("disk", Tier::Disk),
        ("disk_lower", Tier::Disk),
        ("fs", Tier::Disk),
        ("storage", Tier::Disk),
        ("shared_storage", Tier::Disk),
        ("nvme_weird", Tier::Disk),
        ("obj", Tier::Remote),
        ("object_store", Tier::Remote),
        ("external", Tier::Remote),
    ];
    let files = fs::read_dir(folder()).unwrap().filter(|file| {
        file.as_ref()
            .unwrap()
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with("medium_"))
    });
    assert_eq!(files.count(), expected.len());
    for (name, tier) in expected {
        let [Ok(IndexUpdate::Stored(stored))] = &updates(&format!("medium_{name}.msgpack"))[..]
        else {
            panic!("{name} is no store");
        };
        assert_eq!(stored.tier, tier, "{name}");
    }
    // A missing medium counts as the device, also if the field is nil.
    for file in [
        "vllm_0_9_0_stored_root_batch2.msgpack",
        "vllm_0_10_2_removed_int_medium_nil.msgpack",
    ] {
        match &updates(file)[0] {
            Ok(IndexUpdate::Stored(stored)) => assert_eq!(stored.tier, Tier::Device),
            Ok(IndexUpdate::Removed(removed)) => assert_eq!(removed.tier, Tier::Device),
            other => panic!("{file}: {other:?}"),
        }
    }
}

#[test]
#[contract("F63", "D2")]
fn events_of_no_use_to_the_index_are_ignored_with_a_reason() {
    for (file, reason) in [
        (
            "vllm_0_22_swa_skipped_blocks.msgpack",
            IgnoredReason::NotFullAttention,
        ),
        (
            "vllm_0_20_removed_group1.msgpack",
            IgnoredReason::NotFullAttention,
        ),
        (
            "vllm_0_17_stored_extra_keys_mm_str.msgpack",
            IgnoredReason::Multimodal,
        ),
        (
            "vllm_0_24_prompt_embeds_extra_keys.msgpack",
            IgnoredReason::Multimodal,
        ),
    ] {
        assert_eq!(updates(file), [Err(reason)], "{file}");
    }
    // The events around an unknown one count.
    let around = updates("unknown_tag_among_known.msgpack");
    assert!(matches!(
        around[..],
        [Err(IgnoredReason::UnknownTag), Ok(IndexUpdate::Stored(_))]
    ));
    // Of the groups of a hybrid model only full attention covers every token.
    let groups = updates("vllm_0_22_hybrid_two_groups.msgpack");
    assert!(matches!(groups[0], Ok(IndexUpdate::Stored(_))));
    assert!(groups.contains(&Err(IgnoredReason::NotFullAttention)));
}

#[test]
fn placeholders_name_blocks_also_held_in_another_tier() {
    let (first, second) = (
        EngineHash(3_236_607_068_019_569_386),
        EngineHash(2_758_186_210_834_249_151),
    );
    for (file, hashes, tier) in [
        (
            "vllm_0_26_offload_placeholder.msgpack",
            vec![first],
            Tier::Host,
        ),
        (
            "vllm_0_26_storage_fs_local.msgpack",
            vec![first, second],
            Tier::Disk,
        ),
        (
            "vllm_0_26_storage_obj_remote.msgpack",
            vec![first, second],
            Tier::Remote,
        ),
        (
            "vllm_0_27_storage_remote.msgpack",
            vec![first, second],
            Tier::Remote,
        ),
    ] {
        assert_eq!(
            updates(file)[0],
            Ok(IndexUpdate::Named(NamedBlocks { hashes, tier })),
            "{file}"
        );
    }
}

#[test]
#[contract("V17", "V47")]
fn an_lmcache_chunk_is_a_block_of_its_own_size() {
    let [Ok(IndexUpdate::Stored(chunk))] = &updates("lmcache_stored_cpu.msgpack")[..] else {
        panic!("no store")
    };
    assert_eq!(
        (chunk.block_size.tokens(), chunk.tier, chunk.hashes.len()),
        (256, Tier::Host, 1)
    );
    assert_eq!(chunk.tokens, (1..=256).collect::<Vec<u32>>());
}

#[test]
#[contract("D2")]
fn multimodal_items_are_read_with_their_places() {
    let [Ok(IndexUpdate::Stored(stored))] = &updates("vllm_0_24_mm_extra_keys.msgpack")[..] else {
        panic!("no store")
    };
    assert_eq!(
        stored.media,
        [
            MediaHash::of([("9f2c1d6e0b", 4)]),
            MediaHash::of([("9f2c1d6e0b", -12), ("77aa01b2c3", 9)])
        ]
    );
}

#[test]
fn adapters_and_salts_are_read_from_any_of_their_fields() {
    for (file, lora, salt) in [
        ("vllm_0_9_2_stored_lora_id.msgpack", Some("lora_id:7"), None),
        (
            "vllm_0_14_stored_lora_name.msgpack",
            Some("sql-adapter"),
            None,
        ),
        ("vllm_0_33_lora.msgpack", Some("sql-adapter"), None),
        (
            "vllm_0_17_stored_extra_keys_salt.msgpack",
            None,
            Some("tenant-salt"),
        ),
        (
            "sglang_0_5_18_stored_salt_metadata.msgpack",
            None,
            Some("tenant-a"),
        ),
        ("sglang_0_5_20_stored_map.msgpack", None, Some("tenant-a")),
        (
            "sglang_0_5_22_stored_map_lora.msgpack",
            Some("sql-adapter"),
            None,
        ),
        ("vllm_0_22_stored_full.msgpack", None, None),
    ] {
        let [Ok(IndexUpdate::Stored(stored))] = &updates(file)[..] else {
            panic!("{file} is no store")
        };
        assert_eq!(
            (stored.lora.as_deref(), stored.salt.as_deref()),
            (lora, salt),
            "{file}"
        );
    }
}

#[test]
fn hash_zero_is_a_valid_parent_and_nil_is_none() {
    let [Ok(IndexUpdate::Stored(child))] = &updates("parent_hash_zero.msgpack")[..] else {
        panic!("no store")
    };
    assert_eq!(child.parent, Some(EngineHash(0)));
    let [Ok(IndexUpdate::Stored(root))] = &updates("hashes_across_msgpack_int_widths.msgpack")[..]
    else {
        panic!("no store");
    };
    assert_eq!((root.parent, root.hashes[0]), (None, EngineHash(0)));
}

#[test]
fn integer_and_digest_hashes_name_the_same_blocks() {
    let stored = |file| match &updates(file)[..] {
        [Ok(IndexUpdate::Stored(stored))] => stored.hashes.clone(),
        other => panic!("{other:?}"),
    };
    let as_integers = stored("vllm_0_10_2_stored_root_int.msgpack");
    assert_eq!(as_integers.len(), 4);
    assert_eq!(as_integers, stored("vllm_0_10_2_stored_root_bytes.msgpack"));
    assert_eq!(
        as_integers,
        stored("vllm_0_24_stored_root_map_bytes.msgpack")
    );
}

#[test]
fn token_pairs_count_as_their_first_tokens() {
    let [Ok(IndexUpdate::Stored(stored))] = &updates("sglang_bigram_tokens.msgpack")[..] else {
        panic!("no store")
    };
    assert_eq!(stored.tokens, (1..=16).collect::<Vec<u32>>());
}

#[test]
fn a_large_event_is_complete() {
    let [Ok(IndexUpdate::Stored(stored))] = &updates("large_batch_512_blocks.msgpack")[..] else {
        panic!("no store")
    };
    assert_eq!(stored.hashes.len(), 512);
    assert_eq!(stored.tokens, (0..8192).collect::<Vec<u32>>());
}

/// Returns the manifest's form of an event, with hashes reduced to their low 64 bits.
fn normal_form(event: &Value) -> Value {
    let hash = |hash: &Value| match hash.get("as_u64").or(hash.get("low64_be")) {
        Some(low) => low.clone(),
        None => hash.clone(),
    };
    let mut event = event.as_object().unwrap().clone();
    if let Some(hashes) = event.get_mut("block_hashes") {
        *hashes = hashes.as_array().unwrap().iter().map(hash).collect();
    }
    if let Some(parent) = event.get_mut("parent_block_hash") {
        *parent = hash(parent);
    }
    Value::Object(event)
}

fn as_json(batch: &EventBatch) -> Vec<Value> {
    batch
        .events
        .iter()
        .map(|event| match event.as_ref().unwrap() {
            VllmEvent::Stored(event) => stored_json(event),
            VllmEvent::Removed(event) => removed_json(event),
            VllmEvent::Cleared => json!({"type": "AllBlocksCleared"}),
            VllmEvent::Unknown { tag } => json!({"type": "unknown", "tag": tag}),
        })
        .collect()
}

fn hash_json(hash: &EngineHash) -> Value {
    json!(hash.0.to_string())
}

fn put<T: serde_json::value::Index + Into<String>, V: Into<Value>>(
    object: &mut Map<String, Value>,
    key: T,
    value: Option<V>,
) {
    if let Some(value) = value {
        object.insert(key.into(), value.into());
    }
}

fn stored_json(event: &BlockStored) -> Value {
    let mut object = Map::new();
    put(&mut object, "type", Some("BlockStored"));
    put(
        &mut object,
        "block_hashes",
        Some(event.block_hashes.iter().map(hash_json).collect::<Value>()),
    );
    put(
        &mut object,
        "parent_block_hash",
        Some(
            event
                .parent_block_hash
                .as_ref()
                .map_or(Value::Null, hash_json),
        ),
    );
    put(
        &mut object,
        "token_ids",
        Some(match &event.token_ids {
            WireTokens::Flat(tokens) => json!(tokens),
            WireTokens::Pairs(pairs) => json!(pairs),
        }),
    );
    put(&mut object, "block_size", Some(event.block_size));
    put(&mut object, "lora_id", event.lora.id);
    put(&mut object, "medium", event.location.medium.as_deref());
    put(&mut object, "lora_name", event.lora.name.as_deref());
    put(
        &mut object,
        "extra_keys",
        event.extra_keys.as_deref().map(extra_keys_json),
    );
    put(&mut object, "group_idx", event.group.idx);
    put(
        &mut object,
        "kv_cache_spec_kind",
        event.group.spec_kind.as_deref(),
    );
    put(
        &mut object,
        "kv_cache_spec_sliding_window",
        event.group.sliding_window,
    );
    put(&mut object, "locality", event.location.locality.as_deref());
    put(
        &mut object,
        "ownership",
        event.location.ownership.as_deref(),
    );
    put(&mut object, "session_id", event.session_id.as_deref());
    put(
        &mut object,
        "lookahead_token_ids",
        event
            .lookahead_token_ids
            .as_ref()
            .map(|tokens| json!(tokens)),
    );
    put(&mut object, "cache_salt", event.cache_salt.as_deref());
    Value::Object(object)
}

fn removed_json(event: &BlockRemoved) -> Value {
    let mut object = Map::new();
    put(&mut object, "type", Some("BlockRemoved"));
    put(
        &mut object,
        "block_hashes",
        Some(event.block_hashes.iter().map(hash_json).collect::<Value>()),
    );
    put(&mut object, "medium", event.location.medium.as_deref());
    put(&mut object, "group_idx", event.group_idx);
    put(&mut object, "locality", event.location.locality.as_deref());
    put(
        &mut object,
        "ownership",
        event.location.ownership.as_deref(),
    );
    Value::Object(object)
}

fn extra_keys_json(blocks: &[Vec<ExtraKey>]) -> Value {
    let key = |key: &ExtraKey| match key {
        ExtraKey::Text(text) => json!(text.to_string()),
        ExtraKey::Item(item, offset) => json!([item.to_string(), offset]),
        ExtraKey::Digest(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({"bytes_hex": hex})
        }
        ExtraKey::Other => Value::Null,
    };
    blocks
        .iter()
        .map(|keys| {
            if keys.is_empty() {
                Value::Null
            } else {
                keys.iter().map(key).collect()
            }
        })
        .collect()
}
