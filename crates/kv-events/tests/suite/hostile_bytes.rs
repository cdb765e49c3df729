//! Any bytes: no panic, no loss of neighbouring events, and an encoded batch decodes to the same.

#[path = "../../../../fuzz/checks/continuum.rs"]
mod continuum;
#[path = "../../../../fuzz/checks/frames.rs"]
mod frames;
#[path = "../../../../fuzz/checks/mutation.rs"]
mod mutation;
#[path = "../../../../fuzz/checks/sequencer.rs"]
mod sequencer;
#[path = "../../../../fuzz/checks/standard.rs"]
mod standard;
#[path = "../../../../fuzz/checks/trtllm.rs"]
mod trtllm;
#[path = "../../../../fuzz/checks/vllm_payload.rs"]
mod vllm_payload;

use contract_id::contract;
use kv_blocks::EngineHash;
use kv_events::vllm::{
    BlockLocation, BlockRemoved, BlockStored, EventEncoding, EventLayout, ExtraKey, HashForm,
    KvCacheGroup, VllmEvent, WireEvent, WireHash, WireKey, WireRemoved, WireStored, WireTokens,
    decode, encode, to_update,
};
use proptest::{collection::vec, option, prelude::*};

use crate::random;

fn stored() -> impl Strategy<Value = WireEvent> {
    let items = vec(("[a-z0-9]{1,8}", any::<i64>()), 0..3);
    let keys = option::of(("[a-z]{1,8}", items));
    (
        vec(any::<[u8; 32]>(), 1..6),
        option::of(any::<[u8; 32]>()),
        1..9_u32,
        option::of("[a-zA-Z_]{1,9}"),
        keys,
    )
        .prop_map(|(hashes, parent, block_size, medium, keys)| {
            let count = u32::try_from(hashes.len()).unwrap();
            let extra_keys = keys.map(|(salt, items)| {
                let items = items
                    .into_iter()
                    .map(|(name, place)| WireKey::Item(name, place));
                let mut blocks = vec![None; hashes.len()];
                blocks[0] = Some(items.chain([salt.into()]).collect());
                blocks
            });
            WireEvent::Stored(WireStored {
                hashes: hashes.into_iter().map(WireHash).collect(),
                parent: parent.map(WireHash),
                tokens: (0..count * block_size)
                    .map(|at| at.wrapping_mul(2_654_435_761))
                    .collect(),
                block_size,
                lora_id: None,
                lora_name: None,
                medium,
                extra_keys,
            })
        })
}

fn event() -> impl Strategy<Value = WireEvent> {
    let removed =
        (vec(any::<u64>(), 0..5), option::of("[A-Z]{1,6}")).prop_map(|(hashes, medium)| {
            WireEvent::Removed(WireRemoved {
                hashes: hashes.into_iter().map(WireHash::from).collect(),
                medium,
            })
        });
    prop_oneof![stored(), removed, Just(WireEvent::Cleared)]
}

fn encoding() -> impl Strategy<Value = EventEncoding> {
    let layout = prop_oneof![Just(EventLayout::Map), Just(EventLayout::Array)];
    let hash_form = prop_oneof![Just(HashForm::Int), Just(HashForm::Bytes)];
    (layout, hash_form).prop_map(|(layout, hash_form)| EventEncoding { layout, hash_form })
}

fn in_medium(medium: Option<&str>) -> BlockLocation {
    BlockLocation {
        medium: medium.map(Into::into),
        ..BlockLocation::default()
    }
}

/// Returns the expected decoding of an event.
fn expected(event: &WireEvent) -> VllmEvent {
    let engine = |hash: &WireHash| EngineHash(hash.low());
    match event {
        WireEvent::Stored(event) => VllmEvent::Stored(Box::new(BlockStored {
            block_hashes: event.hashes.iter().map(engine).collect(),
            parent_block_hash: event.parent.as_ref().map(engine),
            token_ids: WireTokens::Flat(event.tokens.clone()),
            block_size: event.block_size,
            location: in_medium(event.medium.as_deref()),
            extra_keys: event.extra_keys.as_ref().map(|blocks| {
                let read = |key: &WireKey| match key {
                    WireKey::Text(text) => ExtraKey::Text(text.as_str().into()),
                    WireKey::Item(name, place) => ExtraKey::Item(name.as_str().into(), *place),
                };
                blocks
                    .iter()
                    .map(|keys| keys.iter().flatten().map(read).collect())
                    .collect()
            }),
            group: KvCacheGroup {
                idx: Some(0),
                spec_kind: Some("full_attention".into()),
                sliding_window: None,
            },
            ..BlockStored::default()
        })),
        WireEvent::Removed(event) => VllmEvent::Removed(Box::new(BlockRemoved {
            block_hashes: event.hashes.iter().map(engine).collect(),
            location: in_medium(event.medium.as_deref()),
            group_idx: Some(0),
        })),
        WireEvent::Cleared => VllmEvent::Cleared,
    }
}

fn read_all(bytes: &[u8]) {
    if let Ok(batch) = decode(bytes) {
        for event in batch.events.into_iter().flatten() {
            let _ = to_update(&event);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_handled(bytes in vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    #[contract("F58")]
    fn any_bytes_behind_a_plausible_beginning_are_handled(
        map in any::<bool>(),
        bytes in vec(prop_oneof![any::<u8>(), 0x80..0xa0_u8, 0xc0..0xe0_u8], 0..200),
    ) {
        let mut batch = vec![0x92, 0x00, 0x91];
        batch.extend(if map { &b"\x8b\xa4type\xabBlockStored\xa9token_ids"[..] } else { &b"\x9c\xabBlockStored"[..] });
        batch.extend(bytes);
        read_all(&batch);
    }

    #[test]
    fn a_damaged_batch_is_handled(
        events in vec(event(), 0..4), encoding in encoding(),
        at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = encode(1.5, Some(2), &events, encoding);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        read_all(&bytes);
    }

    #[test]
    fn an_encoded_batch_decodes_to_the_same(
        events in vec(event(), 0..6), encoding in encoding(), rank in option::of(any::<u32>()),
    ) {
        let batch = decode(&encode(1.5, rank, &events, encoding)).unwrap();
        prop_assert_eq!(batch.ts, Some(1.5));
        prop_assert_eq!(batch.dp_rank, rank);
        let decoded: Vec<VllmEvent> = batch.events.into_iter().map(Result::unwrap).collect();
        prop_assert_eq!(decoded, events.iter().map(expected).collect::<Vec<_>>());
    }

    #[test]
    fn a_truncated_batch_is_an_error(
        events in vec(event(), 1..4), encoding in encoding(), cut in any::<prop::sample::Index>(),
    ) {
        let bytes = encode(1.5, None, &events, encoding);
        prop_assert!(decode(&bytes[..cut.index(bytes.len())]).is_err());
    }
}

/// An array of `count` equal values.
fn array(count: u32, value: &[u8]) -> Vec<u8> {
    let values = value.repeat(count as usize);
    [&[0xdd][..], &count.to_be_bytes(), &values].concat()
}

/// A batch of these events.
fn batch(events: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(events.len()).unwrap();
    [
        &[0x92, 0x00, 0xdd][..],
        &count.to_be_bytes(),
        &events.concat(),
    ]
    .concat()
}

/// A placeholder with these hashes and extra keys.
fn placeholder(hashes: &[u8], extra_keys: &[u8]) -> Vec<u8> {
    let fields: [&[u8]; 4] = [
        b"\x85\xa4type\xabBlockStored\xa9token_ids\x90\xaablock_size\x00\xacblock_hashes",
        hashes,
        b"\xaaextra_keys",
        extra_keys,
    ];
    fields.concat()
}

#[test]
#[contract("F58")]
fn what_takes_more_memory_than_its_bytes_is_bounded_in_a_batch() {
    const MOST: u32 = 1 << 20;
    const MOST_EVENTS: usize = 1 << 18;
    const NIL: &[u8] = &[0xc0];
    // The figures at the bounds rest on these.
    assert!(size_of::<BlockStored>() + size_of::<VllmEvent>() <= 320);
    assert!(size_of::<ExtraKey>() <= 32);
    let only = |event: Vec<u8>| decode(&batch(&[event])).unwrap().events.remove(0);
    assert!(only(placeholder(&array(MOST, &[1]), NIL)).is_ok());
    for (hashes, extra_keys) in [
        (array(MOST + 1, &[1]), NIL.to_vec()),
        (array(1, &[1]), array(MOST + 1, NIL)),
        (array(1, &[1]), array(1, &array(MOST, NIL))),
    ] {
        assert!(only(placeholder(&hashes, &extra_keys)).is_err());
    }
    let half = placeholder(&array(MOST / 2 + 1, &[1]), NIL);
    assert!(decode(&batch(&[half.clone(), half])).is_err());
    let cleared = [&[0x91, 0xb0][..], b"AllBlocksCleared"].concat();
    let mut events = vec![cleared; MOST_EVENTS];
    assert!(decode(&batch(&events)).is_ok());
    events.push(events[0].clone());
    assert!(decode(&batch(&events)).is_err());
}

const PAYLOADS: &str = "tests/fixtures/kv_events";

#[test]
fn mutated_payloads_of_engines_are_handled() {
    mutation::survives(&[PAYLOADS], vllm_payload::check);
}

#[test]
fn mutated_payloads_of_the_standard_are_handled() {
    mutation::survives(&[PAYLOADS], standard::check_msgpack);
    mutation::survives(&["fuzz/seeds/standard_json"], standard::check_json);
}

#[test]
fn mutated_answers_to_polls_are_handled() {
    mutation::survives(&["fuzz/seeds/trtllm"], trtllm::check);
}

#[test]
fn mutated_prefix_events_are_handled() {
    mutation::survives(&["fuzz/seeds/continuum"], continuum::check);
}

#[test]
fn mutated_messages_are_handled() {
    mutation::survives(&["fuzz/seeds/frames"], frames::check);
}

#[test]
fn any_sequence_of_stream_inputs_is_handled() {
    mutation::survives(&["fuzz/seeds/sequencer"], sequencer::check);
}
