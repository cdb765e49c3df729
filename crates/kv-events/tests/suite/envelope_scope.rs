//! The scope of a publisher's envelopes, and the hasher of a publisher.

use contract_id::contract;
use kv_blocks::{BlockSize, HashScheme, IndexUpdate};
use kv_events::standard::{
    EnvelopeChange, EnvelopeNormaliser, EventRejection, HashKeyedUpdate, StandardChange,
    StandardEvent, StreamKey,
};

const SCHEME: HashScheme = HashScheme::Xxh3 { seed: 1337 };

fn registration() -> StreamKey {
    StreamKey {
        model: Some("m".into()),
        block_size: Some(4),
        salt: Some("w8a8".into()),
        tenant: Some("a".into()),
        dp_rank: Some(3),
        ..StreamKey::default()
    }
}

fn publisher() -> EnvelopeNormaliser {
    EnvelopeNormaliser::new(registration(), SCHEME)
}

fn event(stream: StreamKey, change: StandardChange) -> StandardEvent {
    StandardEvent {
        event_id: 1,
        timestamp_ms: None,
        stream,
        change,
        object_key: None,
    }
}

fn stored(seq_hashes: Vec<u64>, token_ids: Option<Vec<u32>>) -> StandardEvent {
    let change = StandardChange::Stored {
        seq_hashes,
        base_block_idx: Some(0),
        parent_hash: None,
        token_ids,
    };
    event(StreamKey::default(), change)
}

fn standard_hash() -> u64 {
    SCHEME.chain(None, &[1, 2, 3, 4], BlockSize::new(4).unwrap())[0].0
}

fn rejection(publisher: &mut EnvelopeNormaliser, stream: StreamKey) -> Option<&'static str> {
    let event = event(stream, StandardChange::Cleared);
    publisher.update(&event).err().map(|why| why.as_str())
}

#[test]
#[contract("MC8", "MC11")]
fn the_registration_fills_in_open_dimensions() {
    let update = publisher().update(&stored(vec![7], None)).unwrap();
    assert_eq!((&*update.namespace.model, update.rank), ("m", 3));
    assert_eq!(update.namespace.salt.as_deref(), Some("w8a8"));
    let own = StreamKey {
        salt: Some("own".into()),
        dp_rank: Some(0),
        ..StreamKey::default()
    };
    let update = publisher()
        .update(&event(own, StandardChange::Cleared))
        .unwrap();
    assert_eq!(update.rank, 0);
    assert_eq!(update.namespace.salt.as_deref(), Some("own"));
}

#[test]
#[contract("MC6", "MC8")]
fn another_tenant_model_or_block_size_is_refused() {
    let base = StreamKey::default;
    let tenant = |name: &str| StreamKey {
        tenant: Some(name.into()),
        ..base()
    };
    for (stream, expected) in [
        (tenant("b"), Some("other_tenant")),
        (tenant("default"), Some("other_tenant")),
        (tenant("a"), None),
        (
            StreamKey {
                model: Some("n".into()),
                ..base()
            },
            Some("other_model"),
        ),
        (
            StreamKey {
                block_size: Some(8),
                ..base()
            },
            Some("other_block_size"),
        ),
    ] {
        assert_eq!(
            rejection(&mut publisher(), stream.clone()),
            expected,
            "{stream:?}"
        );
    }
    // Without a registered tenant, the default one is meant.
    let mut open = EnvelopeNormaliser::new(StreamKey::default(), SCHEME);
    assert_eq!(rejection(&mut open, tenant("a")), Some("other_tenant"));
    assert_eq!(
        rejection(&mut open, tenant("default")),
        Some("no_namespace")
    );
}

#[test]
#[contract("MC8")]
fn a_device_belongs_to_one_backend_and_other_media_to_any() {
    let mut publisher = publisher();
    let of = |backend: &str, medium: &str, rank| StreamKey {
        backend_id: Some(backend.into()),
        medium: Some(medium.into()),
        dp_rank: Some(rank),
        ..StreamKey::default()
    };
    for (stream, expected) in [
        (of("w0", "gpu", 0), None),
        (of("w1", "gpu", 0), Some("other_backend")),
        (of("w1", "gpu", 1), None),
        (of("pool", "cpu", 0), None),
        (of("pool", "HBM", 0), Some("other_backend")),
        (of("w0", "npu", 0), None),
    ] {
        assert_eq!(
            rejection(&mut publisher, stream.clone()),
            expected,
            "{stream:?}"
        );
    }
    publisher.reset();
    assert_eq!(rejection(&mut publisher, of("w1", "gpu", 0)), None);
}

#[test]
#[contract("MC9", "MC13")]
fn the_first_event_with_tokens_shows_whose_hashes_they_are() {
    let tokens = || Some(vec![1, 2, 3, 4]);
    // The standard's: an event that contradicts itself later is refused.
    let mut standard = publisher();
    let update = standard.update(&stored(vec![standard_hash()], tokens()));
    assert!(matches!(
        update.unwrap().change,
        EnvelopeChange::Hashed(HashKeyedUpdate::Stored { .. })
    ));
    let wrong = standard.update(&stored(vec![70], tokens())).unwrap_err();
    assert!(wrong.is_contradiction());
    assert!(standard.update(&stored(vec![71], None)).is_ok());
    // The publisher's own: all is known by its tokens from then on.
    let mut own = publisher();
    let update = own.update(&stored(vec![70], tokens())).unwrap();
    let EnvelopeChange::Named(IndexUpdate::Stored(named)) = update.change else {
        panic!("{update:?}")
    };
    assert_eq!(
        (named.tokens, named.salt.as_deref()),
        (vec![1, 2, 3, 4], Some("w8a8"))
    );
    assert_eq!(
        own.update(&stored(vec![71], None)),
        Err(EventRejection::OwnHashes)
    );
    let removed = StandardChange::Removed {
        seq_hashes: vec![70],
        base_block_idx: Some(0),
    };
    let update = own.update(&event(StreamKey::default(), removed)).unwrap();
    assert!(matches!(
        update.change,
        EnvelopeChange::Named(IndexUpdate::Removed(_))
    ));
    assert_eq!(update.removed_at, Some(0));
}
