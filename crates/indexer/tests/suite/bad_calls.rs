//! Errors of calls have one form, and a failed call has no effect.

use axum::{body::Body, http::Request};
use contract_id::contract;
use serde_json::{Value, json};

use crate::indexer_fixture::{IndexerFixture, StoredSequence, TestPublisher, engine, query};

#[tokio::test]
#[contract("MC1", "MC3", "MC5")]
async fn a_bad_body_is_a_400_that_names_the_field() {
    let fixture = IndexerFixture::open();
    let whole = engine("tcp://127.0.0.1:1", "i", &json!({}));
    for (path, body, field) in [
        ("/register", json!({}), json!("endpoint")),
        ("/register", json!([whole]), Value::Null),
        ("/register", json!("x"), Value::Null),
        (
            "/register",
            engine("http://127.0.0.1:1", "i", &json!({})),
            json!("endpoint"),
        ),
        (
            "/register",
            engine("tcp://127.0.0.1:1", "i", &json!({"type": "Triton"})),
            json!("type"),
        ),
        (
            "/register",
            engine("tcp://127.0.0.1:1", "i", &json!({"dp_rank": -1})),
            json!("dp_rank"),
        ),
        (
            "/register",
            engine("tcp://127.0.0.1:1", "i", &json!({"block_size": 0})),
            json!("block_size"),
        ),
        ("/unregister", json!({"instance_id": "i"}), json!("dp_rank")),
        ("/unregister", json!({"dp_rank": 0}), json!("instance_id")),
        (
            "/query",
            query(&[1], &json!({"block_size": (1_u64 << 31) + 1})),
            json!("block_size"),
        ),
        (
            "/query",
            query(&[1], &json!({"block_size": "4"})),
            json!("block_size"),
        ),
        (
            "/query",
            query(&[1], &json!({"token_ids": "1,2"})),
            json!("token_ids"),
        ),
        (
            "/query",
            query(&[1], &json!({"lora_id": 1, "lora_name": "x"})),
            json!("lora_id"),
        ),
        (
            "/query_by_hash",
            query(&[1], &json!({})),
            json!("seq_hashes"),
        ),
        (
            "/query_by_hash",
            query(&[1], &json!({"seq_hashes": ["ff"]})),
            json!("seq_hashes"),
        ),
        (
            "/query_by_hash",
            query(&[1], &json!({"seq_hashes": [1], "block_hash": [1]})),
            json!("block_hash"),
        ),
    ] {
        let answer = fixture.post(path, &body).await;
        assert_eq!(answer.error(), (400, field), "{path} {body}");
        assert_eq!(answer.kind, "application/json");
    }
    assert_eq!(fixture.get("/services").await, json!({"services": []}));
}

#[tokio::test]
async fn malformed_bodies_are_refused_in_both_encodings() {
    let fixture = IndexerFixture::open();
    for path in ["/register", "/unregister", "/query", "/query_by_hash"] {
        for body in [
            &b""[..],
            b"{",
            b"{\"model\": \"\xff\"}",
            b"\x00\x01",
            &[b'['; 100_000],
            &[0x91; 100_000],
        ] {
            assert_eq!(
                fixture.post_bytes(path, &[], body.to_vec()).await.error().0,
                400
            );
            let answer = fixture
                .post_bytes(
                    path,
                    &[("content-type", "application/msgpack")],
                    body.to_vec(),
                )
                .await;
            assert_eq!(
                (answer.status, answer.kind.as_str()),
                (400, "application/msgpack")
            );
        }
    }
}

#[tokio::test]
async fn other_methods_and_paths_get_errors_of_the_same_form() {
    let fixture = IndexerFixture::open();
    for (method, path, status) in [
        ("GET", "/query", 405),
        ("PUT", "/register", 405),
        ("POST", "/services", 405),
        ("DELETE", "/global_view", 405),
        ("GET", "/", 404),
        ("POST", "/query/", 404),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::empty())
            .unwrap();
        assert_eq!(
            fixture.send(request).await.error(),
            (status, Value::Null),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn a_call_from_another_origin_registers_nothing() {
    let fixture = IndexerFixture::open();
    let body = engine("tcp://127.0.0.1:1", "i", &json!({}))
        .to_string()
        .into_bytes();
    let headers = [
        ("host", "127.0.0.1:13333"),
        ("origin", "http://evil.test"),
        ("content-type", "text/plain"),
    ];
    assert_eq!(
        fixture
            .post_bytes("/register", &headers, body)
            .await
            .error(),
        (403, Value::Null)
    );
    assert_eq!(fixture.get("/services").await, json!({"services": []}));
}

#[tokio::test]
#[contract("S39")]
async fn a_forbidden_address_is_refused_at_once_and_a_name_for_it_at_the_connect() {
    let fixture = IndexerFixture::open();
    let answer = fixture
        .post(
            "/register",
            &engine("tcp://169.254.169.254:80", "i", &json!({})),
        )
        .await;
    assert_eq!(answer.error(), (403, json!("endpoint")));
    // A spelling that only the resolver reads as this address.
    fixture
        .post_ok("/register", &engine("tcp://2852039166:80", "i", &json!({})))
        .await;
    // What is at the address is not told, nor that it is forbidden.
    let refused = |service: &Value| service["last_error"] == "no_connection";
    let service = fixture.until_service("the refusal", refused).await;
    assert_eq!(service["state"], "connecting");
}

#[tokio::test]
#[contract("MC12")]
async fn no_query_creates_state() {
    let fixture = IndexerFixture::open();
    let one = TestPublisher::bind().await;
    fixture
        .post_ok("/register", &engine(&one.endpoint, "i", &json!({})))
        .await;
    one.until_followed_by(1).await;
    one.store(&StoredSequence {
        tokens: &[1; 8],
        ..StoredSequence::default()
    });
    let row = json!({"longest_matched": 8, "GPU": 8, "DP": {"0": 8}, "CPU": 0, "DISK": 0});
    fixture
        .until(
            "/query",
            &query(&[1; 8], &json!({})),
            &json!({"default": {"i": row}}),
        )
        .await;
    let (before, services) = (
        fixture.index.stats(),
        fixture.get("/services").await["services"]
            .as_array()
            .unwrap()
            .len(),
    );
    for n in 0..200 {
        let changes = json!({
            "model": format!("model-{n}"), "lora_name": format!("l{n}"), "cache_salt": format!("s{n}"), "block_size": 1 + n % 64,
        });
        let zeros = json!({"longest_matched": 0, "GPU": 0, "DP": {"0": 0}, "CPU": 0, "DISK": 0});
        assert_eq!(
            fixture.post_ok("/query", &query(&[n; 64], &changes)).await,
            json!({"default": {"i": zeros}})
        );
        let tenant = json!({"tenant_id": format!("t{n}"), "instance_id": "i"});
        assert_eq!(
            fixture.post_ok("/query", &query(&[n; 64], &tenant)).await,
            json!({})
        );
    }
    assert_eq!(fixture.index.stats(), before);
    assert_eq!(
        fixture.get("/services").await["services"]
            .as_array()
            .unwrap()
            .len(),
        services
    );
}

#[tokio::test]
#[contract("MC12")]
async fn registrations_are_bounded_and_each_removal_frees_a_place() {
    let fixture = IndexerFixture::open();
    let unreachable = |n: u32| engine("ipc:///nobody/is/here.sock", &format!("i{n}"), &json!({}));
    for n in 0..4096 {
        fixture.post_ok("/register", &unreachable(n)).await;
    }
    let one_more = fixture.post("/register", &unreachable(4096)).await;
    assert_eq!(one_more.error(), (503, Value::Null));
    fixture.post_ok("/register", &unreachable(7)).await;
    let rows = fixture.post_ok("/query", &query(&[1; 8], &json!({}))).await;
    assert_eq!(rows["default"].as_object().unwrap().len(), 4096);
    fixture
        .post_ok("/unregister", &json!({"instance_id": "i7", "dp_rank": 0}))
        .await;
    fixture.post_ok("/register", &unreachable(4096)).await;
}

#[tokio::test]
#[contract("MC12")]
async fn a_long_prompt_is_answered_and_a_too_long_one_is_a_413() {
    let fixture = IndexerFixture::open();
    let one = TestPublisher::bind().await;
    fixture
        .post_ok("/register", &engine(&one.endpoint, "i", &json!({})))
        .await;
    one.until_followed_by(1).await;
    one.store(&StoredSequence {
        tokens: &[9; 4],
        ..StoredSequence::default()
    });
    let tokens = vec![9; 1 << 20];
    let row = json!({"longest_matched": 4, "GPU": 4, "DP": {"0": 4}, "CPU": 0, "DISK": 0});
    fixture
        .until(
            "/query",
            &query(&tokens, &json!({})),
            &json!({"default": {"i": row}}),
        )
        .await;
    let answer = fixture
        .post_bytes("/query", &[], vec![b' '; (32 << 20) + 1])
        .await;
    assert_eq!(answer.error(), (413, Value::Null));
}
