//! Decoding of events of the standard contract, and refusals.

use contract_id::contract;
use kv_events::{
    BatchError, EventError,
    standard::{
        StandardChange, StandardEvent, StreamKey, decode_json, decode_msgpack, encode_json,
        encode_msgpack,
    },
};
use serde_json::{Value, json};

/// Returns the example of the contract, with some fields replaced.
fn stored(other: Value) -> Value {
    let mut event = json!({
        "event_id": 42, "timestamp": 1_739_145_600_000_u64, "event_type": "stored", "model_name": "llama-3.1-8b",
        "block_size": 64, "additional_salt": null, "lora_name": null, "tenant_id": "default", "backend_id": "worker-0",
        "medium": "gpu", "dp_rank": 0, "seq_hashes": [1_234_567_890, 9_876_543_210_u64, 1_122_334_455],
        "base_block_idx": 5, "parent_hash": 9_999_999_999_u64, "token_ids": null,
    });
    for (key, value) in other.as_object().unwrap() {
        event[key] = value.clone();
    }
    event
}

fn one(event: &Value) -> Result<StandardEvent, EventError> {
    decode_json(event.to_string().as_bytes()).unwrap().remove(0)
}

fn complaint(other: Value) -> String {
    one(&stored(other)).unwrap_err().to_string()
}

fn hashes(event: &Value) -> Vec<u64> {
    match one(event).unwrap().change {
        StandardChange::Stored { seq_hashes, .. } | StandardChange::Removed { seq_hashes, .. } => {
            seq_hashes
        }
        StandardChange::Cleared => Vec::new(),
    }
}

#[test]
#[contract("MC8", "MC9", "DY19")]
fn the_three_event_kinds_of_the_contract_are_decoded() {
    let event = one(&stored(json!({}))).unwrap();
    assert_eq!(
        (event.event_id, event.timestamp_ms, event.object_key),
        (42, Some(1_739_145_600_000), None)
    );
    let stream = StreamKey {
        model: Some("llama-3.1-8b".into()),
        block_size: Some(64),
        tenant: Some("default".into()),
        backend_id: Some("worker-0".into()),
        medium: Some("gpu".into()),
        dp_rank: Some(0),
        ..StreamKey::default()
    };
    assert_eq!(event.stream, stream);
    let change = StandardChange::Stored {
        seq_hashes: vec![1_234_567_890, 9_876_543_210, 1_122_334_455],
        base_block_idx: Some(5),
        parent_hash: Some(9_999_999_999),
        token_ids: None,
    };
    assert_eq!(event.change, change);
    let removed = one(&stored(
        json!({"event_type": "removed", "seq_hashes": [7], "base_block_idx": 7}),
    ))
    .unwrap();
    assert_eq!(
        removed.change,
        StandardChange::Removed {
            seq_hashes: vec![7],
            base_block_idx: Some(7)
        }
    );
    let without_index = one(&stored(
        json!({"event_type": "removed", "base_block_idx": null}),
    ))
    .unwrap();
    assert!(matches!(
        without_index.change,
        StandardChange::Removed {
            base_block_idx: None,
            ..
        }
    ));
    let cleared = one(&stored(
        json!({"event_type": "cleared", "seq_hashes": null}),
    ))
    .unwrap();
    assert_eq!(
        (cleared.change, cleared.stream),
        (StandardChange::Cleared, stream)
    );
}

#[test]
#[contract("MC8")]
fn an_envelope_may_omit_fields_that_a_registration_has() {
    let bare = json!({"event_id": 0, "event_type": "cleared", "lora_name": "", "medium": null});
    let event = one(&bare).unwrap();
    assert_eq!(
        (&event.stream, event.timestamp_ms),
        (&StreamKey::default(), None)
    );
    let registration = StreamKey {
        model: Some("m".into()),
        block_size: Some(16),
        ..StreamKey::default()
    };
    let filled = event.stream.or(&registration);
    assert_eq!(filled, registration);
    let own = StreamKey {
        model: Some("own".into()),
        dp_rank: Some(1),
        ..StreamKey::default()
    };
    let filled = own.or(&registration);
    assert_eq!(
        (filled.model.as_deref(), filled.block_size, filled.dp_rank),
        (Some("own"), Some(16), Some(1))
    );
    assert_eq!(filled.namespace().unwrap().block_size.tokens(), 16);
    assert_eq!(
        own.namespace(),
        None,
        "without a block size the blocks cannot be placed"
    );
}

#[test]
#[contract("MC5", "MC8")]
fn hashes_are_exact_as_numbers_and_as_text() {
    let both = stored(
        json!({"seq_hashes": [u64::MAX, "18446744073709551615", 9_007_199_254_740_993_u64, "0"]}),
    );
    assert_eq!(
        hashes(&both),
        [u64::MAX, u64::MAX, 9_007_199_254_740_993, 0]
    );
    for wrong in [
        json!(-1),
        json!(1.5),
        json!("-1"),
        json!("0x1f"),
        json!("18446744073709551616"),
        json!(null),
        json!([1]),
    ] {
        let complaint = complaint(json!({"seq_hashes": [1, wrong.clone()]}));
        assert!(
            complaint.contains(&format!("seq_hashes is {wrong}: expected 64-bit hashes")),
            "{complaint}"
        );
    }
}

#[test]
fn the_older_fields_are_signed_and_the_newer_ones_win() {
    let older = json!({
        "event_id": 1, "type": "BlockStored", "block_hashes": [-1, 5], "parent_block_hash": i64::MIN, "medium": "cpu",
    });
    let event = one(&older).unwrap();
    let StandardChange::Stored {
        seq_hashes,
        parent_hash,
        ..
    } = event.change
    else {
        panic!("no store")
    };
    assert_eq!(
        (seq_hashes, parent_hash),
        (vec![u64::MAX, 5], Some(1 << 63))
    );
    let both =
        stored(json!({"type": "BlockRemoved", "block_hashes": [-3], "parent_block_hash": -3}));
    assert_eq!(one(&both), one(&stored(json!({}))));
    let removed = json!({"event_id": 1, "type": "BlockRemoved", "block_hashes": [2]});
    assert!(matches!(
        one(&removed).unwrap().change,
        StandardChange::Removed { .. }
    ));
    let cleared = json!({"event_id": 1, "type": "AllBlocksCleared"});
    assert_eq!(one(&cleared).unwrap().change, StandardChange::Cleared);
}

#[test]
#[contract("MC9")]
fn a_store_is_placed_by_its_depth_or_by_its_parent() {
    let position_of = |base: Value, parent: Value| {
        let event = one(&stored(
            json!({"base_block_idx": base, "parent_hash": parent}),
        ));
        event.map(|event| match event.change {
            StandardChange::Stored {
                base_block_idx,
                parent_hash,
                ..
            } => (base_block_idx, parent_hash),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(position_of(json!(0), json!(null)), Ok((Some(0), None)));
    assert_eq!(position_of(json!(3), json!(null)), Ok((Some(3), None)));
    assert_eq!(position_of(json!(null), json!("9")), Ok((None, Some(9))));
    assert_eq!(
        position_of(json!(null), json!(0)),
        Ok((None, Some(0))),
        "0 is a valid hash"
    );
    assert_eq!(
        position_of(json!(0), json!(0)),
        Ok((Some(0), None)),
        "but at the beginning of a chain it means no parent"
    );
    assert!(
        position_of(json!(null), json!(null))
            .unwrap_err()
            .reason
            .contains("both missing")
    );
    assert!(
        position_of(json!(0), json!(4))
            .unwrap_err()
            .reason
            .contains("parent_hash is 4")
    );
}

#[test]
fn every_error_names_the_field_the_value_and_the_expected_form() {
    for (other, said) in [
        (
            json!({"event_id": null}),
            "event_id is missing: expected its number",
        ),
        (
            json!({"event_id": "x"}),
            "event_id is \"x\": expected a whole number",
        ),
        (
            json!({"event_type": "moved"}),
            "event_type is \"moved\": expected stored, removed or cleared",
        ),
        (
            json!({"event_type": 1}),
            "event_type is 1: expected stored, removed or cleared",
        ),
        (
            json!({"event_type": null, "type": "stored"}),
            "type is \"stored\": expected BlockStored",
        ),
        (
            json!({"block_size": 0}),
            "block size 0 is out of range: expected 1 to 65536",
        ),
        (
            json!({"dp_rank": 4_294_967_296_u64}),
            "dp_rank is 4294967296: expected 0 to 4294967295",
        ),
        (json!({"dp_rank": -1}), "dp_rank is -1: expected 0 to"),
        (
            json!({"model_name": 7}),
            "model_name is 7: expected a text or null",
        ),
        (
            json!({"additional_salt": "s".repeat(1_025)}),
            "additional_salt has 1025 bytes: expected at most 1024",
        ),
        (json!({"seq_hashes": null}), "seq_hashes is missing"),
        (
            json!({"seq_hashes": []}),
            "seq_hashes is empty: expected at least one hash",
        ),
        (
            json!({"seq_hashes": 5}),
            "seq_hashes is 5: expected an array",
        ),
        (
            json!({"token_ids": [1, -1]}),
            "token_ids is -1: expected token ids, 0 to 4294967295",
        ),
        (
            json!({"token_ids": ["1"]}),
            "token_ids is \"1\": expected token ids",
        ),
        (
            json!({"token_ids": {"a": 1}}),
            "token_ids is {\"a\":1}: expected an array",
        ),
    ] {
        let complaint = complaint(other);
        assert!(
            complaint.starts_with("event is malformed: ") && complaint.contains(said),
            "{complaint}"
        );
    }
    let twice = br#"{"event_id": 1, "event_id": 2, "event_type": "cleared"}"#;
    let complaint = decode_json(twice).unwrap().remove(0).unwrap_err().reason;
    assert_eq!(complaint, "event_id occurs twice: expected it once");
    let long = self::complaint(json!({"event_type": "x".repeat(10_000)}));
    assert!(long.len() < 250, "{long}");
}

#[test]
fn a_timestamp_is_informational_and_unknown_fields_are_skipped() {
    for (sent, read) in [
        (json!(5), Some(5)),
        (json!(-5), Some(-5)),
        (json!("noon"), None),
        (json!(1e300), None),
    ] {
        let event = one(&stored(
            json!({"timestamp": sent, "group_id": {"deep": [[1]]}, "layer_id": 3}),
        ))
        .unwrap();
        assert_eq!(event.timestamp_ms, read);
    }
}

#[test]
fn a_bad_event_loses_only_itself() {
    let list = format!(
        "[{}, 7, [42], {{\"event_id\": 1}}, {}]",
        stored(json!({})),
        stored(json!({"event_id": 43}))
    );
    let kinds: Vec<_> = decode_json(list.as_bytes())
        .unwrap()
        .iter()
        .map(Result::is_ok)
        .collect();
    assert_eq!(kinds, [true, false, false, false, true]);
}

#[test]
fn a_payload_that_is_no_event_list_is_refused_whole() {
    for payload in ["", "7", "nil", "[{}", "[] []", "{}{}", "\"stored\""] {
        let BatchError { bytes, reason } = decode_json(payload.as_bytes()).unwrap_err();
        assert!(bytes == payload.len() && !reason.is_empty(), "{payload}");
    }
    let many = format!("[{}0]", "0,".repeat(1 << 16));
    assert!(
        decode_json(many.as_bytes())
            .unwrap_err()
            .reason
            .contains("more than 65536 events")
    );
    assert_eq!(decode_json(b" [ ] "), Ok(Vec::new()));
    let mut many = vec![0x92, 0x00, 0xdd, 0x00, 0x01, 0x00, 0x01];
    many.resize(many.len() + (1 << 16) + 1, 0);
    assert!(
        decode_msgpack(&many)
            .unwrap_err()
            .reason
            .contains("more than 65536 events")
    );
    for payload in [
        &[][..],
        &[0xc0],
        &[0x91, 0x00],
        &[0x92, 0x00, 0x00],
        &[0x92, 0x00, 0x90, 0x90],
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(decode_msgpack(payload).is_err(), "{payload:x?}");
    }
}

#[test]
fn msgpack_is_a_batch_a_list_or_a_single_event() {
    let event = one(&stored(json!({}))).unwrap();
    let batch = encode_msgpack(&[event.clone(), event.clone()]);
    let expected = vec![Ok(event.clone()), Ok(event.clone())];
    assert_eq!(decode_msgpack(&batch), Ok(expected.clone()));
    // In front: 0x93, a marker and an int64; behind: nil.
    let list = &batch[10..batch.len() - 1];
    assert_eq!(list[0], 0x92);
    assert_eq!(decode_msgpack(list), Ok(expected.clone()));
    let alone = &encode_msgpack(std::slice::from_ref(&event))[11..];
    assert_eq!(
        decode_msgpack(&alone[..alone.len() - 1]),
        Ok(vec![Ok(event)])
    );
    let map = [&[0x82][..], b"\xa2ts\x07\xa6events", list].concat();
    assert_eq!(decode_msgpack(&map), Ok(expected));
    assert_eq!(decode_msgpack(&encode_msgpack(&[])), Ok(Vec::new()));
    assert_eq!(decode_msgpack(&[0x90]), Ok(Vec::new()));
}

#[test]
fn an_encoded_event_has_every_field_of_the_envelope() {
    let event = StandardEvent {
        event_id: u64::MAX,
        timestamp_ms: None,
        stream: StreamKey::default(),
        change: StandardChange::Cleared,
        object_key: None,
    };
    let open = "\"model_name\":null,\"block_size\":null,\"additional_salt\":null,\"lora_name\":null,\"tenant_id\":null,\
                \"backend_id\":null,\"medium\":null,\"dp_rank\":null";
    let written = format!(
        "{{\"event_id\":18446744073709551615,\"timestamp\":null,\"event_type\":\"cleared\",{open}}}"
    );
    assert_eq!(encode_json(&event), written);
    let again = stored(json!({}));
    assert_eq!(
        serde_json::from_str::<Value>(&encode_json(&one(&again).unwrap())).unwrap(),
        again
    );
}
