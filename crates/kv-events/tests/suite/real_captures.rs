//! Frames captured from a real vLLM 0.32 decode to the captured events, and our encoder writes the
//! same bytes.

use std::{fs, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use contract_id::contract;
use kv_blocks::EngineHash;
use kv_events::{
    frames::{self, ReplayForm, ReplayFrame},
    vllm::{
        EventEncoding, ExtraKey, VllmEvent, WireEvent, WireHash, WireKey, WireRemoved, WireStored,
        WireTokens, decode, encode,
    },
};
use serde_json::Value;

fn lines(kind: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real");
    let mut lines = Vec::new();
    for file in ["0.32.0-basic.jsonl", "0.32.0-session.jsonl"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        lines.extend(
            text.lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()),
        );
    }
    lines.retain(|line| line["kind"] == kind);
    lines
}

fn message(list: &Value) -> Vec<Vec<u8>> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|frame| BASE64_STANDARD.decode(frame.as_str().unwrap()).unwrap())
        .collect()
}

fn numbers<T>(list: &Value, make: impl Fn(u64) -> T) -> Vec<T> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|number| make(number.as_u64().unwrap()))
        .collect()
}

fn names(value: &Value) -> Option<&str> {
    value.as_str()
}

/// Compares one decoded event with the capture's reading of it, and returns it in the publisher's
/// form.
fn compare(event: &VllmEvent, expected: &Value) -> WireEvent {
    match event {
        VllmEvent::Stored(event) => {
            assert_eq!(expected["type"], "BlockStored");
            assert_eq!(
                event.block_hashes,
                numbers(&expected["block_hashes"], EngineHash)
            );
            assert_eq!(
                event.parent_block_hash,
                expected["parent_block_hash"].as_u64().map(EngineHash)
            );
            let tokens = numbers(&expected["token_ids"], |token| {
                u32::try_from(token).unwrap()
            });
            assert_eq!(event.token_ids, WireTokens::Flat(tokens.clone()));
            assert_eq!(
                u64::from(event.block_size),
                expected["block_size"].as_u64().unwrap()
            );
            assert_eq!(event.lora.id, expected["lora_id"].as_i64());
            assert_eq!(event.location.medium.as_deref(), names(&expected["medium"]));
            assert_eq!(event.lora.name.as_deref(), names(&expected["lora_name"]));
            assert_eq!(
                event.group.idx.map(u64::from),
                expected["group_idx"].as_u64()
            );
            assert_eq!(
                event.group.spec_kind.as_deref(),
                names(&expected["kv_cache_spec_kind"])
            );
            assert_eq!(event.session_id.as_deref(), names(&expected["session_id"]));
            let keys = event.extra_keys.as_ref().unwrap();
            let mut extra_keys = Vec::new();
            for (keys, expected) in keys.iter().zip(expected["extra_keys"].as_array().unwrap()) {
                let texts: Vec<WireKey> = keys
                    .iter()
                    .map(|key| match key {
                        ExtraKey::Text(text) => text.to_string().into(),
                        other => panic!("{other:?}"),
                    })
                    .collect();
                assert_eq!(texts.len(), expected.as_array().map_or(0, Vec::len));
                extra_keys.push(expected.is_array().then_some(texts));
            }
            WireEvent::Stored(WireStored {
                hashes: event
                    .block_hashes
                    .iter()
                    .map(|hash| WireHash::from(hash.0))
                    .collect(),
                parent: event.parent_block_hash.map(|hash| WireHash::from(hash.0)),
                tokens,
                block_size: event.block_size,
                lora_id: None,
                lora_name: None,
                medium: event.location.medium.as_deref().map(String::from),
                extra_keys: Some(extra_keys),
            })
        }
        VllmEvent::Removed(event) => {
            assert_eq!(expected["type"], "BlockRemoved");
            assert_eq!(
                event.block_hashes,
                numbers(&expected["block_hashes"], EngineHash)
            );
            assert_eq!(event.location.medium.as_deref(), names(&expected["medium"]));
            assert_eq!(
                event.group_idx.map(u64::from),
                expected["group_idx"].as_u64()
            );
            WireEvent::Removed(WireRemoved {
                hashes: event
                    .block_hashes
                    .iter()
                    .map(|hash| WireHash::from(hash.0))
                    .collect(),
                medium: event.location.medium.as_deref().map(String::from),
            })
        }
        VllmEvent::Cleared => {
            assert_eq!(expected["type"], "AllBlocksCleared");
            WireEvent::Cleared
        }
        VllmEvent::Unknown { tag } => panic!("unknown tag {tag}"),
    }
}

#[test]
#[contract("V11", "V12")]
fn every_live_frame_decodes_as_captured_and_encodes_to_the_same_bytes() {
    let captured = lines("pub");
    assert_eq!(captured.len(), 38);
    let (mut kinds, mut with_session) = ([0; 3], 0);
    for line in &captured {
        let message = message(&line["frames"]);
        let live = frames::live(&message).unwrap();
        assert_eq!(live.seq, line["seq"].as_u64());
        assert_eq!(live.topic, line["topic"].as_str().unwrap().as_bytes());

        let batch = decode(live.payload).unwrap();
        let expected = line["batch"].as_array().unwrap();
        // The capture's text form of the time may be off in the last digit.
        assert!((batch.ts.unwrap() - expected[0].as_f64().unwrap()).abs() < 1e-6);
        assert_eq!(batch.dp_rank.map(u64::from), expected[2].as_u64());
        let expected = expected[1].as_array().unwrap();
        assert_eq!(batch.events.len(), expected.len());
        let events: Vec<WireEvent> = batch
            .events
            .iter()
            .zip(expected)
            .map(|(event, expected)| compare(event.as_ref().unwrap(), expected))
            .collect();
        for event in &events {
            kinds[match event {
                WireEvent::Stored(_) => 0,
                WireEvent::Removed(_) => 1,
                WireEvent::Cleared => 2,
            }] += 1;
        }
        // Our publisher has no sessions; one captured request has one.
        if batch
            .events
            .iter()
            .flatten()
            .any(|event| matches!(event, VllmEvent::Stored(event) if event.session_id.is_some()))
        {
            with_session += 1;
            continue;
        }
        let again = encode(
            batch.ts.unwrap(),
            batch.dp_rank,
            &events,
            EventEncoding::CURRENT,
        );
        assert_eq!(again, live.payload, "batch {}", live.seq.unwrap());
        assert_eq!(
            frames::encode_live(live.topic, live.seq.unwrap(), &again),
            message
        );
    }
    assert_eq!(with_session, 1);
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

#[test]
#[contract("MC11")]
fn every_replay_answer_is_encoded_to_the_same_bytes() {
    let (mut batches, mut ends) = (0, 0);
    for line in lines("replay")
        .iter()
        .filter(|line| line["socket"] == "DEALER")
    {
        for list in line["received"].as_array().unwrap() {
            let message = message(list);
            match frames::replay(&message).unwrap() {
                ReplayFrame::Batch { seq, payload } => {
                    assert!(decode(payload).unwrap().events.iter().all(Result::is_ok));
                    assert_eq!(
                        frames::encode_replay(ReplayForm::New, b"", seq, payload),
                        message
                    );
                    batches += 1;
                }
                ReplayFrame::End => {
                    assert_eq!(frames::encode_replay_end(ReplayForm::New), message);
                    ends += 1;
                }
            }
        }
    }
    assert!(
        batches > 50 && ends >= 6,
        "{batches} batches, {ends} end markers"
    );
}
