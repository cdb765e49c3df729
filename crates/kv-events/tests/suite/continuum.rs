//! Events that name whole prefixes.

use contract_id::contract;
use kv_events::continuum::{ContinuumError, ContinuumEvent, ContinuumKind, encode, parse, sse};
use proptest::{option, prelude::*};
use serde_json::{Value, json};

fn read(name: Option<&str>, data: Value) -> Result<ContinuumEvent, ContinuumError> {
    parse(name, data.to_string().as_bytes())
}

fn decode_error(name: Option<&str>, data: Value) -> String {
    read(name, data).unwrap_err().to_string()
}

#[test]
#[contract("CK44")]
fn the_five_event_kinds_are_decoded() {
    let names = [
        "cache_created",
        "cache_evicted",
        "cache_offloaded",
        "cache_reloaded",
        "cache_purged",
    ];
    for (name, kind) in names.into_iter().zip(ContinuumKind::ALL) {
        assert_eq!(kind.as_str(), name);
        assert_eq!(
            read(Some(name), json!({"prefix_hash": "ab"})).unwrap().kind,
            kind
        );
        assert_eq!(
            read(None, json!({"prefix_hash": "ab", "event": name}))
                .unwrap()
                .kind,
            kind
        );
    }
}

#[test]
#[contract("CK46")]
fn the_event_field_of_the_stream_wins_over_the_type_in_the_data() {
    let data = json!({"event": "cache_created", "prefix_hash": "ab"});
    assert_eq!(
        read(Some("cache_purged"), data.clone()).unwrap().kind,
        ContinuumKind::Purged
    );
    assert_eq!(
        read(Some(""), data.clone()).unwrap().kind,
        ContinuumKind::Created
    );
    assert!(
        matches!(read(Some("message"), data), Err(ContinuumError::UnknownKind(name)) if name == "message")
    );
    let odd = json!({"event": 7, "prefix_hash": "ab"});
    assert_eq!(
        read(Some("cache_created"), odd.clone()).unwrap().kind,
        ContinuumKind::Created
    );
    assert_eq!(read(None, odd), Err(ContinuumError::NoKind));
}

#[test]
#[contract("CK44")]
fn an_error_about_the_kind_lists_the_known_kinds() {
    for decode_error in [
        decode_error(None, json!({"prefix_hash": "ab"})),
        decode_error(None, json!({"prefix_hash": "ab", "event": null})),
        decode_error(Some("CACHE_CREATED"), json!({})),
        decode_error(
            None,
            json!({"prefix_hash": "ab", "event": "x".repeat(1_000)}),
        ),
    ] {
        let known = "cache_created, cache_evicted, cache_offloaded, cache_reloaded or cache_purged";
        assert!(
            decode_error.contains(known) && decode_error.len() < 300,
            "{decode_error}"
        );
    }
    // A comment of the stream itself need not be JSON.
    assert_eq!(
        parse(Some("snapshot_end"), b""),
        Err(ContinuumError::UnknownKind("snapshot_end".into()))
    );
}

#[test]
#[contract("CK45")]
fn a_prefix_is_hex_digits_and_its_tokens_may_be_left_out() {
    let prefix = |hash: Value| {
        read(Some("cache_created"), json!({"prefix_hash": hash})).map(|event| event.prefix_hash)
    };
    assert_eq!(prefix(json!("00FfAa")), Ok("00ffaa".into()));
    assert_eq!(prefix(json!("a".repeat(128))), Ok("a".repeat(128)));
    for wrong in [
        json!("a"),
        json!("a".repeat(129)),
        json!("xyz"),
        json!("0x12"),
        json!(""),
        json!(12),
        json!(null),
    ] {
        assert!(
            matches!(prefix(wrong.clone()), Err(ContinuumError::BadPrefix(_))),
            "{wrong}"
        );
    }
    let missing = decode_error(Some("cache_created"), json!({}));
    assert_eq!(
        missing,
        "prefix_hash is missing: expected 2 to 128 hex digits as text"
    );

    let count = |count: Value| {
        read(
            Some("cache_created"),
            json!({"prefix_hash": "ab", "token_count": count}),
        )
        .map(|event| event.token_count)
    };
    assert_eq!(
        (count(json!(0)), count(json!(u64::MAX)), count(json!(null))),
        (Ok(Some(0)), Ok(Some(u64::MAX)), Ok(None))
    );
    for wrong in [json!(-1), json!(1.5), json!("12"), json!([1]), json!(1e30)] {
        assert!(
            matches!(count(wrong.clone()), Err(ContinuumError::BadCount(_))),
            "{wrong}"
        );
    }
}

#[test]
fn data_that_is_no_object_is_refused() {
    for data in [
        "",
        "[]",
        "[\"cache_created\", \"ab\", 1]",
        "{\"prefix_hash\": \"ab\"",
        "{}{}",
        "nil",
    ] {
        let read = parse(Some("cache_created"), data.as_bytes());
        assert!(
            matches!(read, Err(ContinuumError::NotAnObject(_))),
            "{data}: {read:?}"
        );
    }
    let twice = br#"{"prefix_hash": "ab", "prefix_hash": "cd"}"#;
    assert!(parse(Some("cache_created"), twice).is_err());
    let deep = [&br#"{"prefix_hash": "#[..], &vec![b'['; 1_000_000]].concat();
    assert!(parse(Some("cache_created"), &deep).is_err());
}

#[test]
fn an_event_is_encoded_as_documented() {
    let event = ContinuumEvent {
        kind: ContinuumKind::Created,
        prefix_hash: "ea06fc71a5ee6e88".into(),
        token_count: Some(64),
    };
    let data = encode(&event, "w1", 0);
    let expected = r#"{"event":"cache_created","backend":"w1","dp_rank":0,"prefix_hash":"ea06fc71a5ee6e88","token_count":64}"#;
    assert_eq!(data, expected);
    assert_eq!(
        sse("w1/0/7", event.kind.as_str(), &data),
        format!("id: w1/0/7\nevent: cache_created\ndata: {expected}\n\n")
    );
    let hostile = sse("a\nid: b\r\0", "x\r\ndata: y", "one\ntwo");
    assert_eq!(
        hostile,
        "id: aid: b\nevent: xdata: y\ndata: one\ndata: two\n\n"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_encoded_event_decodes_to_the_same(
        kind in prop::sample::select(&ContinuumKind::ALL[..]), prefix_hash in "[0-9a-f]{2,128}",
        token_count in option::of(any::<u64>()), backend in any::<String>(), rank in any::<u32>(), named in any::<bool>(),
    ) {
        let event = ContinuumEvent { kind, prefix_hash, token_count };
        let data = encode(&event, &backend, rank);
        prop_assert_eq!(data.lines().count(), 1);
        prop_assert_eq!(parse(named.then_some(kind.as_str()), data.as_bytes()), Ok(event));
    }

    #[test]
    fn any_bytes_are_handled(name in option::of(any::<String>()), data in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(name.as_deref(), &data);
        let _ = parse(Some("cache_created"), &[b"{\"prefix_hash\":", &data[..]].concat());
    }
}
