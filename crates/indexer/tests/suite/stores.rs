//! A store beside several engines: its blocks count for each, under its medium.

use contract_id::contract;
use serde_json::{Value, json};

use crate::desk::{IndexerFixture, StoreChange, StoredSequence, TestPublisher, engine, query};

/// What engines call their first block: a digest, which no two blocks have in common by chance.
const NAME: u64 = 0xea06_fc71_a5ee_6e88;
const PROMPT: [u32; 16] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];

/// Engines `a` and `b`, whose blocks have the same names, and a store that is registered for both.
async fn two_and_their_store(desk: &IndexerFixture) -> ([TestPublisher; 2], TestPublisher) {
    let (a, b, store) = (
        TestPublisher::bind().await,
        TestPublisher::bind().await,
        TestPublisher::bind().await,
    );
    for (publisher, instance) in [(&a, "a"), (&b, "b")] {
        desk.done(
            "/register",
            &engine(&publisher.endpoint, instance, &json!({})),
        )
        .await;
        desk.done(
            "/register",
            &engine(&store.endpoint, instance, &json!({"type": "Mooncake"})),
        )
        .await;
        publisher.until_followed_by(1).await;
    }
    // One connection for all whom it is for.
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
async fn its_blocks_count_for_each_instance_after_the_instances_own() {
    let desk = IndexerFixture::open();
    let ([a, b], store) = two_and_their_store(&desk).await;
    let question = query(&PROMPT, &json!({}));
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
    desk.until(
        "/query",
        &question,
        &rows(&row(16, 16, 0, 0), &row(8, 8, 0, 0)),
    )
    .await;
    store.store_event(&[NAME + 1, NAME + 2], "cpu", StoreChange::In);
    store.store_event(&[NAME + 3], "disk", StoreChange::In);
    // `a` has everything on its device too; `b` goes on in the store where its device ends.
    desk.until(
        "/query",
        &question,
        &rows(&row(16, 16, 8, 4), &row(16, 8, 8, 4)),
    )
    .await;
    a.remove(NAME + 3, "GPU");
    a.remove(NAME + 2, "GPU");
    desk.until(
        "/query",
        &question,
        &rows(&row(16, 8, 8, 4), &row(16, 8, 8, 4)),
    )
    .await;
    store.store_event(&[NAME + 2], "cpu", StoreChange::Out);
    desk.until(
        "/query",
        &question,
        &rows(&row(8, 8, 4, 0), &row(8, 8, 4, 0)),
    )
    .await;
}

#[tokio::test]
#[contract("MC10")]
async fn a_store_says_nothing_of_an_engines_device() {
    let desk = IndexerFixture::open();
    let ([a, b], store) = two_and_their_store(&desk).await;
    let question = query(&PROMPT, &json!({}));
    for engine in [&a, &b] {
        engine.store(&StoredSequence {
            tokens: &PROMPT,
            names: NAME,
            ..StoredSequence::default()
        });
    }
    desk.until(
        "/query",
        &question,
        &rows(&row(16, 16, 0, 0), &row(16, 16, 0, 0)),
    )
    .await;
    store.store_event(&[NAME], "gpu", StoreChange::Out);
    // Names that no engine has said are no blocks of theirs.
    store.store_event(&[7, 8], "cpu", StoreChange::In);
    store.store_event(&[NAME], "cpu", StoreChange::In);
    desk.until(
        "/query",
        &question,
        &rows(&row(16, 16, 4, 0), &row(16, 16, 4, 0)),
    )
    .await;
}

#[tokio::test]
#[contract("MC2", "MC10")]
async fn unregistering_an_instance_leaves_the_store_to_the_other() {
    let desk = IndexerFixture::open();
    let ([a, b], store) = two_and_their_store(&desk).await;
    let question = query(&PROMPT, &json!({}));
    for engine in [&a, &b] {
        engine.store(&StoredSequence {
            tokens: &PROMPT,
            names: NAME,
            ..StoredSequence::default()
        });
    }
    desk.until(
        "/query",
        &question,
        &rows(&row(16, 16, 0, 0), &row(16, 16, 0, 0)),
    )
    .await;
    let reply = desk
        .done(
            "/unregister",
            &json!({"type": "Mooncake", "instance_id": "a", "dp_rank": 0}),
        )
        .await;
    assert_eq!(
        reply["removed_instances"],
        json!(["a|default|0"]),
        "the key is all there is to it"
    );
    a.until_followed_by(0).await;
    store.until_followed_by(1).await;
    store.store_event(&[NAME], "cpu", StoreChange::In);
    desk.until(
        "/query",
        &question,
        &json!({"default": {"b": row(16, 16, 4, 0)}}),
    )
    .await;
    let services = desk.get("/services").await;
    let types: Vec<_> = services["services"]
        .as_array()
        .unwrap()
        .iter()
        .map(|service| &service["type"])
        .collect();
    assert_eq!(types, ["vLLM", "Mooncake"]);
    desk.done("/unregister", &json!({"instance_id": "b", "dp_rank": 0}))
        .await;
    store.until_followed_by(0).await;
    assert_eq!(desk.index.stats().memberships, 0);
}

#[tokio::test]
#[contract("MC1", "MC10")]
async fn an_instance_has_one_store_and_one_engine_under_a_key() {
    let desk = IndexerFixture::open();
    let (_engines, store) = two_and_their_store(&desk).await;
    let again = engine(&store.endpoint, "a", &json!({"type": "mooncake"}));
    desk.done("/register", &again).await;
    let other = engine("tcp://127.0.0.1:1", "a", &json!({"type": "Mooncake"}));
    assert_eq!(
        desk.post("/register", &other).await.error(),
        (409, json!("endpoint"))
    );
    assert_eq!(
        desk.get("/services").await["services"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
}
