//! A store shared by several engines: its blocks count for each of them, in its medium.

use contract_id::contract;
use serde_json::{Value, json};

use crate::indexer_fixture::{
    IndexerFixture, StoreChange, StoredSequence, TestPublisher, engine, query,
};

/// The engine hash of the first block: a digest, which no two blocks share by chance.
const NAME: u64 = 0xea06_fc71_a5ee_6e88;
const PROMPT: [u32; 16] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];

/// Starts engines `a` and `b`, whose blocks have the same hashes, and a store that is registered
/// for both.
async fn two_engines_and_their_store(
    fixture: &IndexerFixture,
) -> ([TestPublisher; 2], TestPublisher) {
    let (a, b, store) = (
        TestPublisher::bind().await,
        TestPublisher::bind().await,
        TestPublisher::bind().await,
    );
    for (publisher, instance) in [(&a, "a"), (&b, "b")] {
        fixture
            .post_ok(
                "/register",
                &engine(&publisher.endpoint, instance, &json!({})),
            )
            .await;
        fixture
            .post_ok(
                "/register",
                &engine(&store.endpoint, instance, &json!({"type": "Mooncake"})),
            )
            .await;
        publisher.until_followed_by(1).await;
    }
    // One connection for all its instances.
    store.until_followed_by(1).await;
    ([a, b], store)
}

fn row(longest: u32, gpu: u32, cpu: u32, disk: u32) -> Value {
    json!({"longest_matched": longest, "GPU": gpu, "DP": {"0": longest}, "CPU": cpu, "DISK": disk})
}

fn rows(a: &Value, b: &Value) -> Value {
    json!({"default": {"a": a, "b": b}})
}

#[tokio::test]
#[contract("MC1", "MC10")]
async fn blocks_of_a_store_count_for_each_instance_behind_its_own_blocks() {
    let fixture = IndexerFixture::open();
    let ([a, b], store) = two_engines_and_their_store(&fixture).await;
    let request = query(&PROMPT, &json!({}));
    a.store(&StoredSequence {
        tokens: &PROMPT,
        names: NAME,
        ..StoredSequence::default()
    });
    b.store(&StoredSequence {
        tokens: &PROMPT[..8],
        names: NAME,
        ..StoredSequence::default()
    });
    fixture
        .until(
            "/query",
            &request,
            &rows(&row(16, 16, 0, 0), &row(8, 8, 0, 0)),
        )
        .await;
    store.store_event(&[NAME + 1, NAME + 2], "cpu", StoreChange::In);
    store.store_event(&[NAME + 3], "disk", StoreChange::In);
    // `a` also holds all blocks on its device; `b` continues in the store where its device ends.
    fixture
        .until(
            "/query",
            &request,
            &rows(&row(16, 16, 8, 4), &row(16, 8, 8, 4)),
        )
        .await;
    a.remove(NAME + 3, "GPU");
    a.remove(NAME + 2, "GPU");
    fixture
        .until(
            "/query",
            &request,
            &rows(&row(16, 8, 8, 4), &row(16, 8, 8, 4)),
        )
        .await;
    store.store_event(&[NAME + 2], "cpu", StoreChange::Out);
    fixture
        .until(
            "/query",
            &request,
            &rows(&row(8, 8, 4, 0), &row(8, 8, 4, 0)),
        )
        .await;
}

#[tokio::test]
#[contract("MC10")]
async fn a_store_does_not_affect_an_engines_device() {
    let fixture = IndexerFixture::open();
    let ([a, b], store) = two_engines_and_their_store(&fixture).await;
    let request = query(&PROMPT, &json!({}));
    for engine in [&a, &b] {
        engine.store(&StoredSequence {
            tokens: &PROMPT,
            names: NAME,
            ..StoredSequence::default()
        });
    }
    fixture
        .until(
            "/query",
            &request,
            &rows(&row(16, 16, 0, 0), &row(16, 16, 0, 0)),
        )
        .await;
    store.store_event(&[NAME], "gpu", StoreChange::Out);
    // Hashes that no engine announced are not credited to any.
    store.store_event(&[7, 8], "cpu", StoreChange::In);
    store.store_event(&[NAME], "cpu", StoreChange::In);
    fixture
        .until(
            "/query",
            &request,
            &rows(&row(16, 16, 4, 0), &row(16, 16, 4, 0)),
        )
        .await;
}

#[tokio::test]
#[contract("MC2", "MC10")]
async fn unregistering_an_instance_leaves_the_store_to_the_other() {
    let fixture = IndexerFixture::open();
    let ([a, b], store) = two_engines_and_their_store(&fixture).await;
    let request = query(&PROMPT, &json!({}));
    for engine in [&a, &b] {
        engine.store(&StoredSequence {
            tokens: &PROMPT,
            names: NAME,
            ..StoredSequence::default()
        });
    }
    fixture
        .until(
            "/query",
            &request,
            &rows(&row(16, 16, 0, 0), &row(16, 16, 0, 0)),
        )
        .await;
    let reply = fixture
        .post_ok(
            "/unregister",
            &json!({"type": "Mooncake", "instance_id": "a", "dp_rank": 0}),
        )
        .await;
    assert_eq!(
        reply["removed_instances"],
        json!(["a|default|0"]),
        "the key alone decides"
    );
    a.until_followed_by(0).await;
    store.until_followed_by(1).await;
    store.store_event(&[NAME], "cpu", StoreChange::In);
    fixture
        .until(
            "/query",
            &request,
            &json!({"default": {"b": row(16, 16, 4, 0)}}),
        )
        .await;
    let services = fixture.get("/services").await;
    let types: Vec<_> = services["services"]
        .as_array()
        .unwrap()
        .iter()
        .map(|service| &service["type"])
        .collect();
    assert_eq!(types, ["vLLM", "Mooncake"]);
    fixture
        .post_ok("/unregister", &json!({"instance_id": "b", "dp_rank": 0}))
        .await;
    store.until_followed_by(0).await;
    assert_eq!(fixture.index.stats().memberships, 0);
}

#[tokio::test]
#[contract("MC1", "MC10")]
async fn a_key_has_at_most_one_store_and_one_engine() {
    let fixture = IndexerFixture::open();
    let (_engines, store) = two_engines_and_their_store(&fixture).await;
    let again = engine(&store.endpoint, "a", &json!({"type": "mooncake"}));
    fixture.post_ok("/register", &again).await;
    let other = engine("tcp://127.0.0.1:1", "a", &json!({"type": "Mooncake"}));
    assert_eq!(
        fixture.post("/register", &other).await.error(),
        (409, json!("endpoint"))
    );
    assert_eq!(
        fixture.get("/services").await["services"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
}

#[tokio::test]
#[contract("MC9", "MC10")]
async fn what_an_engine_and_its_store_both_hold_leaves_with_the_last_of_them() {
    let fixture = IndexerFixture::open();
    let ([a, _b], store) = two_engines_and_their_store(&fixture).await;
    let request = query(&PROMPT, &json!({"instance_id": "a"}));
    let row = |longest, cpu, disk| json!({"default": {"a": row(longest, 8, cpu, disk)}});
    for medium in ["GPU", "CPU"] {
        a.store(&StoredSequence {
            tokens: &PROMPT[..8],
            names: NAME,
            medium,
            ..StoredSequence::default()
        });
    }
    fixture.until("/query", &request, &row(8, 8, 0)).await;
    // Two media with unknown names beside it, one of which is emptied.
    store.store_event(&[NAME, NAME + 1], "cpu", StoreChange::In);
    store.store_event(&[NAME], "tape", StoreChange::In);
    store.store_event(&[NAME], "drum", StoreChange::In);
    let mut expected = row(8, 8, 0);
    expected["default"]["a"]["tape"] = json!(4);
    expected["default"]["a"]["drum"] = json!(4);
    fixture.until("/query", &request, &expected).await;
    a.remove(NAME, "CPU");
    store.clear_event(Some("tape"));
    expected["default"]["a"]
        .as_object_mut()
        .unwrap()
        .remove("tape");
    fixture.until("/query", &request, &expected).await;
    store.store_event(&[NAME + 1], "cpu", StoreChange::Out);
    store.clear_event(Some("drum"));
    fixture.until("/query", &request, &row(8, 8, 0)).await;
    store.clear_event(None);
    fixture.until("/query", &request, &row(8, 4, 0)).await;
    a.remove(NAME + 1, "CPU");
    fixture.until("/query", &request, &row(8, 0, 0)).await;
}
