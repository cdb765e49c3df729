//! Bytes that claim to follow the standard contract: no panic, no result larger than the input, and
//! an encoded event decodes to the same.

use std::{fs, path::PathBuf, sync::Arc};

use kv_blocks::HashScheme;
use kv_events::{
    BatchError, EventError,
    standard::{
        StandardChange, StandardEvent, StreamKey, decode_json, decode_msgpack, encode_json,
        encode_msgpack, to_hashed, to_named,
    },
    trtllm,
};
use proptest::{collection::vec, option, prelude::*};

fn name() -> impl Strategy<Value = Option<Arc<str>>> {
    option::of(
        any::<String>()
            .prop_filter("an empty text counts as none", |text| !text.is_empty())
            .prop_map(Arc::from),
    )
}

fn stream() -> impl Strategy<Value = StreamKey> {
    let block_size = option::of(1..=65_536_u32);
    let dp_rank = option::of(any::<u32>());
    (
        name(),
        block_size,
        name(),
        name(),
        (name(), name(), name(), dp_rank),
    )
        .prop_map(
            |(model, block_size, salt, lora, (tenant, backend_id, medium, dp_rank))| StreamKey {
                model,
                block_size,
                salt,
                lora,
                tenant,
                backend_id,
                medium,
                dp_rank,
            },
        )
}

fn change() -> impl Strategy<Value = StandardChange> {
    let tokens = || option::of(vec(any::<u32>(), 1..40));
    let root = (vec(any::<u64>(), 1..9), tokens()).prop_map(|(seq_hashes, token_ids)| {
        StandardChange::Stored {
            seq_hashes,
            base_block_idx: Some(0),
            parent_hash: None,
            token_ids,
        }
    });
    let child = (
        vec(any::<u64>(), 1..9),
        option::of(1..=u64::MAX),
        any::<u64>(),
        tokens(),
    )
        .prop_map(
            |(seq_hashes, base_block_idx, parent, token_ids)| StandardChange::Stored {
                seq_hashes,
                base_block_idx,
                parent_hash: Some(parent),
                token_ids,
            },
        );
    let removed = (vec(any::<u64>(), 1..9), option::of(any::<u64>())).prop_map(
        |(seq_hashes, base_block_idx)| StandardChange::Removed {
            seq_hashes,
            base_block_idx,
        },
    );
    prop_oneof![2 => root, 2 => child, 2 => removed, 1 => Just(StandardChange::Cleared)]
}

fn event() -> impl Strategy<Value = StandardEvent> {
    (
        any::<u64>(),
        option::of(any::<i64>()),
        stream(),
        change(),
        name(),
    )
        .prop_map(
            |(event_id, timestamp_ms, stream, change, object_key)| StandardEvent {
                event_id,
                timestamp_ms,
                stream,
                change,
                object_key,
            },
        )
}

fn as_json(events: &[StandardEvent]) -> String {
    format!(
        "[{}]",
        events.iter().map(encode_json).collect::<Vec<_>>().join(",")
    )
}

/// Every decoded event is valid or has a reason, and the result is no larger than the input.
fn is_in_proportion(sent: &[u8], read: Result<Vec<Result<StandardEvent, EventError>>, BatchError>) {
    for event in read.into_iter().flatten() {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                assert!(error.reason.chars().count() <= 200, "{error}");
                continue;
            }
        };
        let _ = (
            to_named(&event),
            to_hashed(&event, HashScheme::default()),
            to_hashed(&event, HashScheme::Fnv1a),
        );
        let bytes = match &event.change {
            StandardChange::Stored {
                seq_hashes,
                token_ids,
                ..
            } => {
                seq_hashes.capacity() * 8
                    + token_ids.as_ref().map_or(0, |tokens| tokens.capacity() * 4)
            }
            StandardChange::Removed { seq_hashes, .. } => seq_hashes.capacity() * 8,
            StandardChange::Cleared => 0,
        };
        // A number needs at least one byte; lists grow by doubling, from four on.
        assert!(bytes <= sent.len() * 16 + 64, "{bytes} of {}", sent.len());
    }
}

fn read_all(bytes: &[u8]) {
    is_in_proportion(bytes, decode_json(bytes));
    is_in_proportion(bytes, decode_msgpack(bytes));
    let _ = trtllm::decode(bytes);
}

/// Returns every payload of the fixture collection.
fn fixtures() -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kv_events");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "msgpack"));
    assert_eq!(files.len(), 142);
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

#[test]
fn every_fixture_is_handled_at_every_length() {
    for bytes in fixtures() {
        for end in 0..bytes.len().min(2_000) {
            read_all(&bytes[..end]);
        }
        read_all(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_handled(bytes in vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn any_json_like_bytes_are_handled(
        text in "(\\[|\\{|\\]|\\}|,|:|\"event_id\"|\"seq_hashes\"|\"event_type\"|\"stored\"|[0-9]{1,21}|-|\\.|e|null| ){0,60}",
    ) {
        read_all(text.as_bytes());
        read_all(format!("{{\"event_id\":1,\"event_type\":\"stored\",\"base_block_idx\":0,\"seq_hashes\":[{text}").as_bytes());
    }

    #[test]
    fn damaged_fixtures_are_handled(
        file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bytes in vec(any::<u8>(), 1..9),
    ) {
        let mut damaged = file.get(&fixtures()).clone();
        let at = at.index(damaged.len() + 1);
        for (offset, byte) in bytes.iter().enumerate() {
            if let Some(damaged_byte) = damaged.get_mut(at + offset) {
                *damaged_byte = *byte;
            }
        }
        read_all(&damaged);
    }

    #[test]
    fn a_damaged_event_is_handled(events in vec(event(), 1..4), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for mut bytes in [as_json(&events).into_bytes(), encode_msgpack(&events)] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            read_all(&bytes);
        }
    }

    #[test]
    fn encoded_events_decode_to_the_same(events in vec(event(), 0..5)) {
        let expected: Vec<_> = events.iter().cloned().map(Ok).collect();
        prop_assert_eq!(decode_msgpack(&encode_msgpack(&events)), Ok(expected.clone()));
        prop_assert_eq!(decode_json(as_json(&events).as_bytes()), Ok(expected));
        for event in events {
            prop_assert_eq!(encode_json(&event).lines().count(), 1);
            prop_assert_eq!(decode_json(encode_json(&event).as_bytes()), Ok(vec![Ok(event)]));
        }
    }

    #[test]
    fn truncated_events_are_an_error(events in vec(event(), 1..4), cut in any::<prop::sample::Index>()) {
        for bytes in [as_json(&events).into_bytes(), encode_msgpack(&events)] {
            let end = cut.index(bytes.len());
            prop_assert!(decode_json(&bytes[..end]).is_err());
            prop_assert!(decode_msgpack(&bytes[..end]).is_err());
        }
    }
}
