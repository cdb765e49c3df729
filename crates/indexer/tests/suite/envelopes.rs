//! Publishers that send envelopes of the KV Events API over their socket.

use std::fs;

use contract_id::contract;
use kv_blocks::{BlockSize, HashScheme};
use kv_events::standard::{StandardChange, StandardEvent, StreamKey};
use serde_json::{Value, json};

use crate::indexer_fixture::{IndexerFixture, TestPublisher, engine, on_gpu, query};

const MODEL: &str = "llama-3.1-8b";

fn fixture(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../../tests/fixtures/kv_events/{name}.msgpack",
        env!("CARGO_MANIFEST_DIR")
    );
    fs::read(path).unwrap()
}

fn tokens() -> Vec<u32> {
    (1..=64).collect()
}

fn hashes() -> Vec<u64> {
    let size = BlockSize::new(16).unwrap();
    let chain = HashScheme::default().chain(None, &tokens(), size);
    chain.iter().map(|hash| hash.0).collect()
}

/// Registers a publisher of the fixtures' model.
async fn follow(fixture: &IndexerFixture, changes: &Value) -> TestPublisher {
    let publisher = TestPublisher::bind().await;
    let mut body = engine(
        &publisher.endpoint,
        "i",
        &json!({"modelname": MODEL, "block_size": 16}),
    );
    for (field, value) in changes.as_object().unwrap() {
        body[field] = value.clone();
    }
    fixture.post_ok("/register", &body).await;
    publisher.until_followed_by(1).await;
    publisher
}

fn request(changes: &Value) -> Value {
    let mut body = query(&tokens(), &json!({"model": MODEL, "block_size": 16}));
    for (field, value) in changes.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

fn key(medium: Option<&str>) -> StreamKey {
    StreamKey {
        model: Some(MODEL.into()),
        block_size: Some(16),
        tenant: Some("default".into()),
        backend_id: Some("worker-0".into()),
        medium: medium.map(Into::into),
        ..StreamKey::default()
    }
}

fn event(event_id: u64, stream: StreamKey, change: StandardChange) -> StandardEvent {
    StandardEvent {
        event_id,
        timestamp_ms: Some(1_739_145_600_000),
        stream,
        change,
        object_key: None,
    }
}

fn stored(seq_hashes: Vec<u64>, token_ids: Option<Vec<u32>>) -> StandardChange {
    StandardChange::Stored {
        seq_hashes,
        base_block_idx: Some(0),
        parent_hash: None,
        token_ids,
    }
}

fn of_instance(row: &Value) -> Value {
    json!({"default": {"i": row}})
}

/// The recorded events of the standard, in the order of their numbers.
#[tokio::test]
#[contract("MC8", "MC9", "MC13")]
async fn the_fixtures_events_are_followed_one_by_one() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({})).await;
    let request = request(&json!({}));
    for (name, gpu) in [
        ("rfc1527_stored_root", 64),
        ("rfc1527_stored_child_with_tokens", 64),
        ("rfc1527_stored_parent_only", 64),
        ("rfc1527_removed", 48),
        ("rfc1527_cleared", 0),
    ] {
        publisher.send(&fixture(name));
        let row = of_instance(&on_gpu(gpu));
        indexer.until("/query", &request, &row).await;
        let mut by_hash = request.clone();
        by_hash["token_ids"] = Value::Null;
        by_hash["seq_hashes"] = json!(hashes());
        assert_eq!(indexer.post_ok("/query_by_hash", &by_hash).await, row);
    }
    let service = indexer
        .until_service("all events", |service| service["counts"]["events"] == 5)
        .await;
    assert_eq!(service["last_error"], Value::Null, "{service}");
    assert_eq!(service["counts"]["applied"], 5);
}

#[tokio::test]
#[contract("MC4", "MC8", "MC11", "MC13")]
async fn envelopes_of_every_type_and_medium_are_credited_with_and_without_tokens() {
    for kind in ["Mooncake", "vLLM", "SGLang", "TensorRT-LLM"] {
        for (medium, row) in [(Some("gpu"), "GPU"), (Some("cpu"), "CPU"), (None, "GPU")] {
            for token_ids in [None, Some(tokens())] {
                let indexer = IndexerFixture::open();
                let publisher = follow(&indexer, &json!({"type": kind})).await;
                let event = event(1, key(medium), stored(hashes(), token_ids));
                publisher.send_envelopes(&[event]);
                let mut expected = on_gpu(64);
                expected["GPU"] = json!(0);
                expected[row] = json!(64);
                let expected = of_instance(&expected);
                indexer
                    .until("/query", &request(&json!({})), &expected)
                    .await;
            }
        }
    }
}

#[tokio::test]
#[contract("MC8")]
async fn envelopes_may_be_json_and_lack_what_the_registration_has() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({"additionalsalt": "w8a8"})).await;
    let event =
        json!({"event_id": 9, "event_type": "stored", "seq_hashes": hashes(), "base_block_idx": 0});
    publisher.send(event.to_string().as_bytes());
    let salted = request(&json!({"cache_salt": "w8a8"}));
    indexer
        .until("/query", &salted, &of_instance(&on_gpu(64)))
        .await;
}

#[tokio::test]
#[contract("MC8")]
async fn an_unreadable_event_is_shown_with_its_reason_and_uses_up_its_number() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({})).await;
    let envelope = |id: u64, hashes: &Value| {
        json!({"event_id": id, "event_type": "stored", "model_name": MODEL, "block_size": 16, "medium": "gpu",
            "seq_hashes": hashes, "base_block_idx": 0})
    };
    let list = json!([
        envelope(1, &json!(hashes()[..1])),
        envelope(2, &json!("no list")),
        envelope(3, &json!(hashes())),
    ]);
    publisher.send(list.to_string().as_bytes());
    // The third does not wait for the second, which would end as a gap.
    indexer
        .until("/query", &request(&json!({})), &of_instance(&on_gpu(64)))
        .await;
    let service = indexer
        .until_service("the error", |service| service["last_error"].is_string())
        .await;
    let reason = service["last_error"].as_str().unwrap();
    assert!(reason.contains("seq_hashes is \"no list\""), "{reason}");
    let counts = &service["counts"];
    assert_eq!(
        (
            &counts["decode_errors"],
            &counts["gaps"],
            &counts["applied"]
        ),
        (&json!(1), &json!(0), &json!(2))
    );
}

#[tokio::test]
#[contract("MC9")]
async fn a_publisher_with_its_own_hasher_is_followed_by_its_tokens() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({})).await;
    let own: Vec<u64> = (900..904).collect();
    let child = StandardChange::Stored {
        seq_hashes: own[2..].to_vec(),
        base_block_idx: Some(2),
        parent_hash: Some(own[1]),
        token_ids: Some(tokens()[32..].to_vec()),
    };
    publisher.send_envelopes(&[
        event(
            1,
            key(Some("gpu")),
            stored(own[..2].to_vec(), Some(tokens()[..32].to_vec())),
        ),
        event(2, key(Some("gpu")), child),
    ]);
    let request = request(&json!({}));
    indexer
        .until("/query", &request, &of_instance(&on_gpu(64)))
        .await;
    let removed = StandardChange::Removed {
        seq_hashes: own[3..].to_vec(),
        base_block_idx: Some(3),
    };
    // Without tokens its hashes say nothing.
    publisher.send_envelopes(&[
        event(3, key(Some("gpu")), removed),
        event(4, key(Some("gpu")), stored(vec![905], None)),
    ]);
    indexer
        .until("/query", &request, &of_instance(&on_gpu(48)))
        .await;
    let service = indexer
        .until_service("the refusal", |service| service["counts"]["ignored"] == 1)
        .await;
    assert!(
        service["last_error"]
            .as_str()
            .unwrap()
            .contains("token_ids")
    );
    assert_eq!(service["counts"]["rehashed"], 2);
    publisher.send_envelopes(&[event(5, key(Some("gpu")), StandardChange::Cleared)]);
    indexer
        .until("/query", &request, &of_instance(&on_gpu(0)))
        .await;
}

#[tokio::test]
#[contract("MC8", "MC6")]
async fn tenants_and_backends_of_one_stream_are_not_merged() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({"tenant_id": "a"})).await;
    let mut body = engine(
        &publisher.endpoint,
        "i",
        &json!({"modelname": MODEL, "block_size": 16, "tenant_id": "b"}),
    );
    body["type"] = json!("SGLang");
    indexer.post_ok("/register", &body).await;
    publisher.until_followed_by(2).await;
    let of = |tenant: &str, backend: &str| StreamKey {
        tenant: Some(tenant.into()),
        backend_id: Some(backend.into()),
        ..key(Some("gpu"))
    };
    publisher.send_envelopes(&[
        event(1, of("a", "w0"), stored(hashes()[..3].to_vec(), None)),
        event(1, of("b", "w0"), stored(hashes()[..1].to_vec(), None)),
        // Another worker's device is no continuation of this one's.
        event(1, of("a", "w1"), stored(hashes(), None)),
    ]);
    for (tenant, gpu) in [("a", 48), ("b", 16)] {
        let row = json!({tenant: {"i": on_gpu(gpu)}});
        indexer
            .until("/query", &request(&json!({"tenant_id": tenant})), &row)
            .await;
    }
    let service = indexer
        .until_service("the other backend", |service| {
            service["tenant_id"] == "a" && service["counts"]["ignored"] == 2
        })
        .await;
    assert!(
        service["last_error"].as_str().unwrap().contains("w1"),
        "{service}"
    );
}

#[tokio::test]
#[contract("MC9", "MC10")]
async fn a_cleared_event_of_a_store_empties_one_medium_or_all_that_it_stored_in() {
    let indexer = IndexerFixture::open();
    let engine_0 = follow(&indexer, &json!({})).await;
    let store = follow(&indexer, &json!({"type": "Mooncake"})).await;
    engine_0.send_envelopes(&[event(1, key(Some("gpu")), stored(hashes(), None))]);
    let pool = |medium| StreamKey {
        backend_id: Some("pool-0".into()),
        ..key(medium)
    };
    let row = |cpu: u32, disk: u32| {
        let mut row = on_gpu(64);
        (row["CPU"], row["DISK"]) = (json!(cpu), json!(disk));
        of_instance(&row)
    };
    let request = request(&json!({}));
    let fill =
        |id| ["cpu", "disk"].map(|medium| event(id, pool(Some(medium)), stored(hashes(), None)));
    store.send_envelopes(&fill(1));
    indexer.until("/query", &request, &row(64, 64)).await;
    store.send_envelopes(&[event(2, pool(Some("cpu")), StandardChange::Cleared)]);
    indexer.until("/query", &request, &row(0, 64)).await;
    store.send_envelopes(&[event(3, pool(Some("cpu")), stored(hashes(), None))]);
    indexer.until("/query", &request, &row(64, 64)).await;
    store.send_envelopes(&[event(1, pool(None), StandardChange::Cleared)]);
    indexer.until("/query", &request, &row(0, 0)).await;
}

#[tokio::test]
#[contract("MC9")]
async fn a_removal_at_another_depth_is_refused_and_shown() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({})).await;
    let removed = |base| StandardChange::Removed {
        seq_hashes: hashes()[3..].to_vec(),
        base_block_idx: Some(base),
    };
    publisher.send_envelopes(&[
        event(1, key(Some("gpu")), stored(hashes(), None)),
        event(2, key(Some("gpu")), removed(7)),
    ]);
    let service = indexer
        .until_service("the collision", |service| service["counts"]["ignored"] == 1)
        .await;
    let reason = service["last_error"].as_str().unwrap();
    assert!(
        reason.contains("at depth 7, but it is at depth 3"),
        "{reason}"
    );
    let request = request(&json!({}));
    indexer
        .until("/query", &request, &of_instance(&on_gpu(64)))
        .await;
    publisher.send_envelopes(&[event(3, key(Some("gpu")), removed(3))]);
    indexer
        .until("/query", &request, &of_instance(&on_gpu(48)))
        .await;
}

#[tokio::test]
#[contract("MC8", "MC4")]
async fn ranks_of_envelopes_are_rows_of_their_own() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({})).await;
    let of = |rank| StreamKey {
        dp_rank: Some(rank),
        ..key(Some("gpu"))
    };
    publisher.send_envelopes(&[
        event(1, of(0), stored(hashes()[..1].to_vec(), None)),
        event(1, of(1), stored(hashes(), None)),
    ]);
    let expected =
        json!({"longest_matched": 64, "GPU": 64, "DP": {"0": 16, "1": 64}, "CPU": 0, "DISK": 0});
    indexer
        .until("/query", &request(&json!({})), &of_instance(&expected))
        .await;
    for (changes, reason) in [
        (
            StreamKey {
                model: Some("other".into()),
                ..of(0)
            },
            "another model",
        ),
        (
            StreamKey {
                block_size: Some(32),
                ..of(0)
            },
            "blocks of 32 tokens",
        ),
    ] {
        publisher.send_envelopes(&[event(1, changes, stored(hashes(), None))]);
        indexer
            .until_service(reason, |service| {
                service["last_error"]
                    .as_str()
                    .is_some_and(|error| error.contains(reason))
            })
            .await;
    }
}

/// A row without blocks on a device; `others`: tokens on media with unknown names.
fn on_media(longest: u32, disk: u32, others: &[(&str, u32)]) -> Value {
    let mut row = on_gpu(longest);
    (row["GPU"], row["DISK"]) = (json!(0), json!(disk));
    for (medium, tokens) in others {
        row[*medium] = json!(tokens);
    }
    of_instance(&row)
}

#[tokio::test]
#[contract("MC9", "MC4")]
async fn a_cleared_or_removed_event_of_one_medium_leaves_the_blocks_of_others_of_its_tier() {
    // Hashes of the standard, and a hasher of its own that is followed by its tokens.
    for own in [false, true] {
        let names: Vec<u64> = if own { (900..904).collect() } else { hashes() };
        let indexer = IndexerFixture::open();
        let publisher = follow(&indexer, &json!({})).await;
        let request = request(&json!({}));
        let store = |blocks: usize| {
            stored(
                names[..blocks].to_vec(),
                Some(tokens()[..16 * blocks].to_vec()),
            )
        };
        let remove = |from: usize| StandardChange::Removed {
            seq_hashes: names[from..].to_vec(),
            base_block_idx: None,
        };
        let (disk, weird, tape) = ("disk", "NVMe-weird", "tape");
        let steps = [
            (disk, 1, store(4), on_media(64, 64, &[])),
            (weird, 1, store(4), on_media(64, 64, &[(weird, 64)])),
            (
                tape,
                1,
                store(2),
                on_media(64, 64, &[(weird, 64), (tape, 32)]),
            ),
            (
                disk,
                2,
                remove(3),
                on_media(64, 48, &[(weird, 64), (tape, 32)]),
            ),
            (
                tape,
                2,
                StandardChange::Cleared,
                on_media(64, 48, &[(weird, 64)]),
            ),
            (weird, 2, StandardChange::Cleared, on_media(48, 48, &[])),
            (weird, 3, store(4), on_media(64, 48, &[(weird, 64)])),
            (
                disk,
                3,
                StandardChange::Cleared,
                on_media(64, 0, &[(weird, 64)]),
            ),
            (weird, 4, remove(1), on_media(16, 0, &[(weird, 16)])),
            (weird, 5, StandardChange::Cleared, on_media(0, 0, &[])),
        ];
        for (medium, id, change, expected) in steps {
            publisher.send_envelopes(&[event(id, key(Some(medium)), change)]);
            indexer.until("/query", &request, &expected).await;
        }
        let service = indexer
            .until_service("all events", |service| service["counts"]["events"] == 10)
            .await;
        assert_eq!(service["counts"]["ignored"], 0, "{service}");
    }
}

#[tokio::test]
#[contract("MC9", "MC8", "MC4")]
async fn two_backends_and_two_names_of_a_tier_are_streams_of_their_own() {
    let indexer = IndexerFixture::open();
    let publisher = follow(&indexer, &json!({})).await;
    let request = request(&json!({}));
    let remove = StandardChange::Removed {
        seq_hashes: hashes()[3..].to_vec(),
        base_block_idx: Some(3),
    };
    let of = |backend: &str, medium| StreamKey {
        backend_id: Some(backend.into()),
        ..key(Some(medium))
    };
    for media in [["cpu", "DRAM", "CPU"], ["nvme", "ssd", "NVMe"]] {
        let [one, other, in_capitals] = media;
        let row = |tokens| {
            let (cpu, disk) = if one == "cpu" {
                (tokens, 0)
            } else {
                (0, tokens)
            };
            let mut row = on_gpu(tokens);
            (row["GPU"], row["CPU"], row["DISK"]) = (json!(0), json!(cpu), json!(disk));
            of_instance(&row)
        };
        let steps = [
            (of("w0", one), 1, stored(hashes(), None), 64),
            (of("w0", other), 1, stored(hashes(), None), 64),
            (of("w1", one), 1, stored(hashes()[..2].to_vec(), None), 64),
            (of("w0", other), 2, remove.clone(), 64),
            // The case of a name does not matter.
            (of("w0", in_capitals), 1, remove.clone(), 48),
            (of("w0", one), 2, StandardChange::Cleared, 48),
            (of("w1", other), 1, StandardChange::Cleared, 48),
            (of("w0", other), 3, StandardChange::Cleared, 32),
            (of("w1", one), 2, StandardChange::Cleared, 0),
        ];
        for (stream, id, change, tokens) in steps {
            publisher.send_envelopes(&[event(id, stream, change)]);
            indexer.until("/query", &request, &row(tokens)).await;
        }
    }
    let service = indexer
        .until_service("all events", |service| service["counts"]["events"] == 18)
        .await;
    assert_eq!(service["counts"]["ignored"], 0, "{service}");
}

#[tokio::test]
#[contract("MC9", "MC2")]
async fn a_restarted_engine_leaves_what_its_store_has_announced() {
    let indexer = IndexerFixture::open();
    let engine_0 = follow(&indexer, &json!({})).await;
    let store = follow(&indexer, &json!({"type": "Mooncake"})).await;
    let request = request(&json!({}));
    let row = |longest: u32, gpu: u32, cpu: u32| {
        let mut row = on_gpu(longest);
        (row["GPU"], row["CPU"]) = (json!(gpu), json!(cpu));
        of_instance(&row)
    };
    for medium in ["gpu", "cpu"] {
        engine_0.send_envelopes(&[event(1, key(Some(medium)), stored(hashes(), None))]);
    }
    indexer.until("/query", &request, &row(64, 64, 64)).await;
    let pool = StreamKey {
        backend_id: Some("pool-0".into()),
        ..key(Some("cpu"))
    };
    let of_store = stored(hashes()[..3].to_vec(), None);
    store.send_envelopes(&[event(1, pool, of_store)]);
    indexer
        .until_service("the store's event", |service| {
            service["type"] == "Mooncake" && service["counts"]["events"] == 1
        })
        .await;
    engine_0.begin_again();
    engine_0.send_envelopes(&[event(
        1,
        key(Some("gpu")),
        stored(hashes()[..1].to_vec(), None),
    )]);
    indexer.until("/query", &request, &row(48, 16, 48)).await;
}
