//! Queries find the blocks that registered publishers announce, each in its own namespace.

use contract_id::contract;
use serde_json::{Value, json};

use crate::indexer_fixture::{
    IndexerFixture, StoredSequence, TestPublisher, engine, on_gpu, query,
};

const PROMPT: [u32; 13] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];

async fn publisher(fixture: &IndexerFixture, instance: &str, changes: &Value) -> TestPublisher {
    let publisher = TestPublisher::bind().await;
    fixture
        .post_ok("/register", &engine(&publisher.endpoint, instance, changes))
        .await;
    publisher.until_followed_by(1).await;
    publisher
}

fn prompt() -> StoredSequence<'static> {
    StoredSequence {
        tokens: &PROMPT[..12],
        ..StoredSequence::default()
    }
}

#[tokio::test]
#[contract("MC1", "MC12")]
async fn a_registration_does_not_wait_for_its_publisher() {
    let fixture = IndexerFixture::open();
    let publisher = TestPublisher::bind().await;
    let endpoint: zmtp::Endpoint = publisher.endpoint.parse().unwrap();
    drop(publisher);
    fixture
        .post_ok("/register", &engine(&endpoint.to_string(), "i", &json!({})))
        .await;
    fixture
        .until_service("an attempt", |service| service["last_error"].is_string())
        .await;
    assert_eq!(
        fixture.post_ok("/query", &query(&PROMPT, &json!({}))).await,
        json!({"default": {"i": on_gpu(0)}})
    );
}

#[tokio::test]
#[contract("MC1")]
async fn an_equal_registration_changes_nothing_and_a_different_one_is_a_conflict() {
    let fixture = IndexerFixture::open();
    let engine_0 = publisher(&fixture, "i", &json!({})).await;
    let again = engine(
        &engine_0.endpoint,
        "i",
        &json!({"tenant_id": "default", "type": "VLLM", "lora_name": ""}),
    );
    fixture.post_ok("/register", &again).await;
    engine_0.until_followed_by(1).await;
    for (field, value) in [
        ("modelname", json!("n")),
        ("block_size", json!(8)),
        ("endpoint", json!("tcp://127.0.0.1:1")),
    ] {
        let answer = fixture
            .post(
                "/register",
                &engine(&engine_0.endpoint, "i", &json!({field: value})),
            )
            .await;
        assert_eq!(answer.error(), (409, json!(field)));
    }
    // Another rank, or an equally named instance of another tenant, is another publisher.
    fixture
        .post_ok(
            "/register",
            &engine(
                &engine_0.endpoint,
                "i",
                &json!({"dp_rank": 1, "modelname": "n"}),
            ),
        )
        .await;
    fixture
        .post_ok(
            "/register",
            &engine(
                &engine_0.endpoint,
                "i",
                &json!({"tenant_id": "t", "modelname": "n"}),
            ),
        )
        .await;
    engine_0.until_followed_by(3).await;
}

#[tokio::test]
#[contract("MC2")]
async fn unregistering_removes_only_the_blocks_of_that_publisher() {
    let fixture = IndexerFixture::open();
    let (rank_0, rank_1) = (
        publisher(&fixture, "i", &json!({})).await,
        publisher(&fixture, "i", &json!({"dp_rank": 1})).await,
    );
    rank_0.store(&prompt());
    rank_1.store(&StoredSequence {
        tokens: &PROMPT[..8],
        ..prompt()
    });
    let both =
        json!({"longest_matched": 12, "GPU": 12, "DP": {"0": 12, "1": 8}, "CPU": 0, "DISK": 0});
    let request = query(&PROMPT, &json!({}));
    fixture
        .until("/query", &request, &json!({"default": {"i": both}}))
        .await;

    // Fields beside the key have no effect.
    let gone = json!({"instance_id": "i", "dp_rank": 0, "modelname": "other", "block_size": "x", "type": 3});
    let reply = fixture.post_ok("/unregister", &gone).await;
    assert_eq!(
        reply,
        json!({"status": "unregistered successfully", "removed_instances": ["i|default|0"]})
    );
    rank_0.until_followed_by(0).await;
    let left = json!({"longest_matched": 8, "GPU": 8, "DP": {"1": 8}, "CPU": 0, "DISK": 0});
    assert_eq!(
        fixture.post_ok("/query", &request).await,
        json!({"default": {"i": left}})
    );
    assert_eq!(
        fixture.post("/unregister", &gone).await.error(),
        (404, json!("instance_id"))
    );

    fixture
        .post_ok("/unregister", &json!({"instance_id": "i", "dp_rank": 1}))
        .await;
    assert_eq!(fixture.post_ok("/query", &request).await, json!({}));
    assert_eq!(fixture.index.stats().memberships, 0);
    // It may register again, and starts empty.
    fixture
        .post_ok("/register", &engine(&rank_0.endpoint, "i", &json!({})))
        .await;
    assert_eq!(
        fixture.post_ok("/query", &request).await,
        json!({"default": {"i": on_gpu(0)}})
    );
}

#[tokio::test]
#[contract("MC6", "MC12")]
async fn tenants_models_and_block_sizes_never_mix() {
    let fixture = IndexerFixture::open();
    let of_a = publisher(&fixture, "a1", &json!({"tenant_id": "a"})).await;
    let of_b = publisher(&fixture, "b1", &json!({"tenant_id": "b", "block_size": 2})).await;
    let other_model = publisher(&fixture, "a2", &json!({"tenant_id": "a", "modelname": "n"})).await;
    of_a.store(&prompt());
    of_b.store(&StoredSequence {
        block_size: 2,
        ..prompt()
    });
    other_model.store(&StoredSequence {
        tokens: &PROMPT[..4],
        ..prompt()
    });
    let request_with = |changes: Value| query(&PROMPT, &changes);
    let rows = |tenant: &str, rows: Value| json!({tenant: rows});
    let of_tenant_a = rows("a", json!({"a1": on_gpu(12), "a2": on_gpu(0)}));
    fixture
        .until(
            "/query",
            &request_with(json!({"tenant_id": "a"})),
            &of_tenant_a,
        )
        .await;
    let the_other = rows("a", json!({"a1": on_gpu(0), "a2": on_gpu(4)}));
    fixture
        .until(
            "/query",
            &request_with(json!({"tenant_id": "a", "model": "n"})),
            &the_other,
        )
        .await;
    fixture
        .until(
            "/query",
            &request_with(json!({"tenant_id": "b", "block_size": 2})),
            &rows("b", json!({"b1": on_gpu(12)})),
        )
        .await;
    assert_eq!(
        fixture
            .post_ok("/query", &request_with(json!({"tenant_id": "b"})))
            .await,
        rows("b", json!({"b1": on_gpu(0)}))
    );
    assert_eq!(
        fixture.post_ok("/query", &request_with(json!({}))).await,
        json!({}),
        "no publisher is registered in the default tenant"
    );
    let only = request_with(json!({"tenant_id": "a", "instance_id": "a1"}));
    assert_eq!(
        fixture.post_ok("/query", &only).await,
        rows("a", json!({"a1": on_gpu(12)}))
    );
    let unknown = json!({"longest_matched": 0, "GPU": 0, "DP": {}, "CPU": 0, "DISK": 0});
    // An instance of another tenant is unknown.
    assert_eq!(
        fixture
            .post_ok(
                "/query",
                &request_with(json!({"tenant_id": "a", "instance_id": "b1"}))
            )
            .await,
        rows("a", json!({"b1": unknown}))
    );
    let view = fixture.get("/global_view").await;
    let instance = |id: &str, tenant: &str, tokens: u32| {
        json!({
            "instance_id": id, "tenant_id": tenant, "dp_rank": 0, "tokens": {"gpu": tokens, "cpu": 0, "disk": 0},
        })
    };
    assert_eq!(
        view,
        json!({"models": [
            {"model": "m", "block_size": 2, "instances": [instance("b1", "b", 12)]},
            {"model": "m", "block_size": 4, "instances": [instance("a1", "a", 12)]},
            {"model": "n", "block_size": 4, "instances": [instance("a2", "a", 4)]},
        ]})
    );
}

#[tokio::test]
#[contract("MC6", "MC11")]
async fn adapters_and_salts_are_part_of_the_namespace_and_default_to_the_registrations() {
    let fixture = IndexerFixture::open();
    let adapted = publisher(&fixture, "lora", &json!({"lora_name": "sql"})).await;
    let salted = publisher(&fixture, "salt", &json!({"additionalsalt": "w8a8"})).await;
    let plain = publisher(&fixture, "plain", &json!({})).await;
    for publisher in [&adapted, &salted, &plain] {
        publisher.store(&prompt());
    }
    let rows = |lora: u32, salt: u32, plain: u32| json!({"default": {"lora": on_gpu(lora), "plain": on_gpu(plain), "salt": on_gpu(salt)}});
    for (changes, expected) in [
        (json!({}), rows(0, 0, 12)),
        (json!({"lora_name": "sql"}), rows(12, 0, 0)),
        (json!({"cache_salt": "w8a8"}), rows(0, 12, 0)),
        (json!({"additional_salt": "w8a8"}), rows(0, 12, 0)),
        (
            json!({"lora_name": "sql", "cache_salt": "w8a8"}),
            rows(0, 0, 0),
        ),
        (json!({"cache_salt": "other"}), rows(0, 0, 0)),
    ] {
        fixture
            .until("/query", &query(&PROMPT, &changes), &expected)
            .await;
    }
    // Blocks behind a block inherit its namespace, so the plain hashes also find them.
    let chain = kv_blocks::HashScheme::default().chain(
        None,
        &PROMPT,
        kv_blocks::BlockSize::new(4).unwrap(),
    );
    let hashes: Vec<u64> = chain.iter().map(|hash| hash.0).collect();
    let by_hash = json!({"model": "m", "seq_hashes": hashes, "block_size": 4, "lora_name": "sql", "instance_id": "lora"});
    assert_eq!(
        fixture.post_ok("/query_by_hash", &by_hash).await,
        json!({"default": {"lora": on_gpu(12)}})
    );
}

#[tokio::test]
#[contract("MC6", "MC11")]
async fn an_events_own_adapter_and_salt_win_over_the_registrations() {
    let fixture = IndexerFixture::open();
    let one = publisher(
        &fixture,
        "i",
        &json!({"lora_name": "sql", "additionalsalt": "w8a8"}),
    )
    .await;
    one.store(&StoredSequence {
        tokens: &PROMPT[..4],
        lora: Some("own"),
        salt: Some("customer"),
        ..prompt()
    });
    let row = |tokens| json!({"default": {"i": on_gpu(tokens)}});
    let request_with = |changes: Value| query(&PROMPT, &changes);
    fixture
        .until(
            "/query",
            &request_with(json!({"lora_name": "own", "cache_salt": "customer"})),
            &row(4),
        )
        .await;
    // If both are given, each event uses its own.
    for (cache_salt, additional_salt, tokens) in [
        (Some("customer"), Some("w8a8"), 4),
        (Some("customer"), Some("w4a4"), 0),
        (Some("customer"), Some(""), 0),
        (None, Some("w8a8"), 0),
        (Some("w8a8"), None, 0),
    ] {
        let changes = json!({"lora_name": "own", "cache_salt": cache_salt, "additional_salt": additional_salt});
        assert_eq!(
            fixture
                .post_ok("/query", &request_with(changes.clone()))
                .await,
            row(tokens),
            "{changes}"
        );
    }
}

#[tokio::test]
#[contract("MC1", "V13")]
async fn blocks_of_another_size_than_registered_are_counted_and_ignored() {
    let fixture = IndexerFixture::open();
    let one = publisher(&fixture, "i", &json!({"block_size": 8})).await;
    one.store(&prompt());
    one.store(&StoredSequence {
        tokens: &PROMPT[..8],
        block_size: 8,
        names: 2000,
        ..prompt()
    });
    let request_with = |size: u32| query(&PROMPT, &json!({"block_size": size}));
    fixture
        .until(
            "/query",
            &request_with(8),
            &json!({"default": {"i": on_gpu(8)}}),
        )
        .await;
    assert_eq!(
        fixture.post_ok("/query", &request_with(4)).await,
        json!({"default": {"i": on_gpu(0)}})
    );
    let service = fixture
        .until_service("the count", |service| service["other_block_size"] == 1)
        .await;
    let error = service["last_error"].as_str().unwrap();
    assert!(
        error.contains("blocks of 4 tokens, expected are 8"),
        "{error}"
    );
    assert_eq!(
        (&service["counts"]["applied"], &service["counts"]["ignored"]),
        (&json!(1), &json!(1))
    );
}

#[tokio::test]
#[contract("MC4", "MC10")]
async fn a_block_on_two_media_counts_in_both_and_is_removed_from_each_separately() {
    let fixture = IndexerFixture::open();
    let one = publisher(&fixture, "i", &json!({"type": "SGLang"})).await;
    one.store(&prompt());
    one.store(&StoredSequence {
        tokens: &PROMPT[..8],
        medium: "CPU",
        ..prompt()
    });
    one.store(&StoredSequence {
        tokens: &PROMPT[..4],
        medium: "DISK",
        ..prompt()
    });
    let row = |longest: u32, gpu: u32, cpu: u32, disk: u32| json!({"default": {"i": {"longest_matched": longest, "GPU": gpu, "DP": {"0": longest}, "CPU": cpu, "DISK": disk}}});
    let request = query(&PROMPT, &json!({}));
    fixture.until("/query", &request, &row(12, 12, 8, 4)).await;
    one.remove(1001, "GPU");
    fixture.until("/query", &request, &row(12, 8, 8, 4)).await;
    one.remove(1002, "GPU");
    fixture.until("/query", &request, &row(8, 4, 8, 4)).await;
}
