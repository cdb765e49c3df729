//! Decoding of events, and their effect on the backend's tier.

use contract_id::contract;
use kv_events::continuum::ContinuumError::{NoKind, UnknownKind};
use prefix_view::{
    EventKind::*, MemoryPrefixIndex, Offloading, PrefixEvent, PrefixEventError, PrefixHash,
    PrefixHashKind, PrefixIndex, RecordOutcome, StorageTier::*,
};

use crate::{BOTH_TIERS, created, event, holding, record, second, settings};

const DATA: &str = r#"{"event":"cache_created","backend":"w9","dp_rank":1,"prefix_hash":"00000000000000AB","token_count":64}"#;

fn decode(name: Option<&str>, data: &str) -> Result<PrefixEvent, PrefixEventError> {
    PrefixEvent::decode(name, data.as_bytes(), PrefixHashKind::SequenceHash)
}

#[test]
#[contract("CK44")]
fn the_five_kinds_have_the_documented_names() {
    for (name, kind) in [
        ("cache_created", Created),
        ("cache_evicted", Evicted),
        ("cache_offloaded", Offloaded),
        ("cache_reloaded", Reloaded),
        ("cache_purged", Purged),
    ] {
        assert_eq!(decode(Some(name), DATA).unwrap().kind, kind);
        assert_eq!(name.strip_prefix("cache_"), Some(kind.as_str()));
    }
    for name in [
        "created",
        "cache_",
        "cache_cleared",
        "Cache_Created",
        "snapshot_end",
    ] {
        assert!(
            matches!(decode(Some(name), DATA), Err(PrefixEventError::NoEvent(UnknownKind(unknown))) if unknown == name)
        );
    }
}

#[test]
#[contract("CK46")]
fn the_event_name_takes_precedence_over_the_kind_in_the_data() {
    assert_eq!(decode(Some("cache_purged"), DATA).unwrap().kind, Purged);
    assert_eq!(decode(None, DATA).unwrap().kind, Created);
    assert_eq!(decode(Some(""), DATA).unwrap().kind, Created);
    let unnamed = r#"{"prefix_hash":"00000000000000ab"}"#;
    assert_eq!(
        decode(Some("cache_evicted"), unnamed).unwrap().kind,
        Evicted
    );
    assert!(matches!(
        decode(None, unnamed),
        Err(PrefixEventError::NoEvent(NoKind))
    ));
    // An event of the stream itself needs no decodable data.
    assert!(matches!(
        decode(Some("lagged"), "not JSON"),
        Err(PrefixEventError::NoEvent(UnknownKind(_)))
    ));
}

#[test]
#[contract("CK45")]
fn an_event_names_its_prefix_in_hex_and_may_count_its_tokens() {
    assert_eq!(decode(None, DATA).unwrap(), event(Created, 0xab, 64));
    for absent in ["", r#","token_count":null"#] {
        let data =
            format!(r#"{{"event":"cache_created","prefix_hash":"00000000000000ab"{absent}}}"#);
        assert_eq!(decode(None, &data).unwrap().token_count, None);
    }
    for count in ["-1", "4294967296", "1.5", "\"64\"", "[]"] {
        let data = format!(r#"{{"prefix_hash":"00000000000000ab","token_count":{count}}}"#);
        let error = decode(Some("cache_created"), &data).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("token_count is {count}: expected")),
            "{error}"
        );
    }
}

#[test]
#[contract("A9")]
fn a_source_sends_prefix_keys_or_sequence_hashes_and_never_both() {
    let key = "0123456789abcdef".repeat(4);
    let read = PrefixHashKind::PrefixKey
        .parse(&key.to_uppercase())
        .unwrap();
    assert!(matches!(read, PrefixHash::Key([0x01, 0x23, ..])));
    assert_eq!(read.to_string(), key);
    assert_eq!(
        PrefixHashKind::SequenceHash
            .parse(&key[..16])
            .unwrap()
            .to_string(),
        key[..16]
    );
    assert!(PrefixHashKind::SequenceHash.parse(&key).is_err());
    for text in [
        "",
        "ab",
        "0x23456789abcdef",
        "0123456789abcdeg",
        "0123456789abcde\u{e9}",
    ] {
        assert!(PrefixHashKind::SequenceHash.parse(text).is_err(), "{text}");
    }
    let error = PrefixHashKind::PrefixKey
        .parse(&key[..16])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no prefix_key: expected 64 hex digits"),
        "{error}"
    );
}

#[test]
fn an_invalid_event_is_rejected_with_the_expected_form() {
    for (data, expected) in [
        ("", "event data is no JSON object"),
        ("[]", "event data is no JSON object"),
        (r#"{"event":"cache_created"}"#, "prefix_hash is missing"),
        (
            r#"{"event":"cache_created","prefix_hash":171}"#,
            "prefix_hash is 171",
        ),
        (
            r#"{"event":7,"prefix_hash":"00000000000000ab"}"#,
            "event has no name",
        ),
        (
            r#"{"event":"cache_created","prefix_hash":"ab"}"#,
            "prefix_hash \"ab\" is no sequence_hash",
        ),
    ] {
        let error = decode(None, data).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{data}: {error}");
    }
    let long = format!(
        r#"{{"event":"cache_created","prefix_hash":"{}"}}"#,
        "f".repeat(100_000)
    );
    assert!(decode(None, &long).unwrap_err().to_string().len() < 300);
}

#[test]
#[contract("CK45")]
fn an_uncounted_event_keeps_the_known_count_or_else_assumes_a_quarter_of_the_prefix_length() {
    for kind in [Created, Reloaded] {
        let index = MemoryPrefixIndex::new(settings(BOTH_TIERS));
        record(&index, "w1", event(kind, 1, None), second(1));
        assert_eq!(
            holding(&index, "w1", 1, second(1)),
            Some((1024 / 4, GpuHot))
        );
        record(&index, "w1", event(Created, 1, 2048), second(2));
        record(&index, "w1", event(kind, 1, None), second(3));
        assert_eq!(holding(&index, "w1", 1, second(3)), Some((2048, GpuHot)));
        // The count of another backend does not apply to this one.
        record(&index, "w2", event(kind, 1, None), second(4));
        assert_eq!(holding(&index, "w2", 1, second(4)), Some((256, GpuHot)));
    }
    let short = MemoryPrefixIndex::new(prefix_view::ViewSettings {
        max_prefix_length: 100,
        ..settings(BOTH_TIERS)
    });
    record(&short, "w1", event(Created, 1, None), second(1));
    assert_eq!(holding(&short, "w1", 1, second(1)), Some((25, GpuHot)));
}

#[test]
#[contract("CK45")]
fn an_expired_count_is_forgotten() {
    let index = MemoryPrefixIndex::new(settings(BOTH_TIERS));
    created(&index, "w1", 1, 2048, second(1));
    record(
        &index,
        "w1",
        event(Reloaded, 1, None),
        second(1 + crate::TTL_S),
    );
    assert_eq!(
        holding(&index, "w1", 1, second(1 + crate::TTL_S)),
        Some((256, GpuHot))
    );
}

#[test]
#[contract("CK54")]
fn without_offloading_everything_is_hot_and_an_offloaded_prefix_is_removed() {
    for kind in [Evicted, Offloaded, Purged] {
        let index = MemoryPrefixIndex::new(settings(Offloading::default()));
        record(&index, "w1", event(Reloaded, 1, 64), second(1));
        created(&index, "w2", 1, 32, second(1));
        assert_eq!(holding(&index, "w1", 1, second(1)), Some((64, GpuHot)));
        assert_eq!(
            record(&index, "w1", event(kind, 1, 64), second(2)),
            RecordOutcome::Dropped
        );
        assert_eq!(holding(&index, "w1", 1, second(2)), None);
        assert_eq!(holding(&index, "w2", 1, second(2)), Some((32, GpuHot)));
    }
}

#[test]
#[contract("CK55")]
fn with_offloading_a_prefix_moves_between_the_tiers_and_keeps_its_tokens() {
    let index = MemoryPrefixIndex::new(settings(BOTH_TIERS));
    created(&index, "w1", 1, 64, second(1));
    for (kind, count, expected) in [
        (Offloaded, None, Some((64, StorageWarm))),
        (Reloaded, None, Some((64, GpuHot))),
        (Offloaded, Some(48), Some((48, StorageWarm))),
        (Created, Some(80), Some((80, GpuHot))),
        (Purged, None, None),
        // It may be in storage, but its token count is unknown.
        (Offloaded, None, None),
        (Offloaded, Some(16), Some((16, StorageWarm))),
        (Purged, None, None),
    ] {
        record(&index, "w1", event(kind, 1, count), second(2));
        assert_eq!(
            holding(&index, "w1", 1, second(2)),
            expected,
            "after {kind:?} {count:?}"
        );
    }
}

#[test]
#[contract("CK56")]
fn the_effect_of_a_plain_eviction_is_configurable() {
    for (offloading, expected) in [
        (BOTH_TIERS, Some((64, StorageWarm))),
        (
            Offloading::On {
                treat_eviction_as_offload: false,
            },
            None,
        ),
        (Offloading::Off, None),
    ] {
        let index = MemoryPrefixIndex::new(settings(offloading));
        created(&index, "w1", 1, 64, second(1));
        record(&index, "w1", event(Evicted, 1, None), second(2));
        assert_eq!(
            holding(&index, "w1", 1, second(2)),
            expected,
            "{offloading:?}"
        );
    }
}

#[test]
fn a_prefix_without_holder_can_neither_be_removed_nor_moved() {
    let index = MemoryPrefixIndex::new(settings(BOTH_TIERS));
    created(&index, "w2", 1, 64, second(1));
    for kind in [Evicted, Offloaded, Purged] {
        assert_eq!(
            record(&index, "w1", event(kind, 1, None), second(2)),
            RecordOutcome::Ignored
        );
    }
    let stats = index.stats();
    assert_eq!((stats.entries, stats.ignored_events), (1, 3));
}
