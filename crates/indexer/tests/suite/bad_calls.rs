//! What is wrong with a call is said in one shape, and nothing else comes of it.

use axum::{body::Body, http::Request};
use contract_id::contract;
use serde_json::{Value, json};

use crate::desk::{IndexerFixture, StoredSequence, TestPublisher, engine, query};

#[tokio::test]
#[contract("MC1", "MC3", "MC5")]
async fn a_bad_body_is_a_400_that_names_the_field() {
    let desk = IndexerFixture::open();
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
        let answer = desk.post(path, &body).await;
        assert_eq!(answer.error(), (400, field), "{path} {body}");
        assert_eq!(answer.kind, "application/json");
    }
    assert_eq!(desk.get("/services").await, json!({"services": []}));
}

#[tokio::test]
async fn bytes_that_are_no_body_are_refused_in_both_encodings() {
    let desk = IndexerFixture::open();
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
                desk.post_bytes(path, &[], body.to_vec()).await.error().0,
                400
            );
            let answer = desk
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
async fn other_methods_and_paths_are_answered_in_the_same_shape() {
    let desk = IndexerFixture::open();
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
            desk.send(request).await.error(),
            (status, Value::Null),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn a_page_of_another_site_registers_nothing() {
    let desk = IndexerFixture::open();
    let body = engine("tcp://127.0.0.1:1", "i", &json!({}))
        .to_string()
        .into_bytes();
    let headers = [
        ("host", "127.0.0.1:13333"),
        ("origin", "http://evil.test"),
        ("content-type", "text/plain"),
    ];
    assert_eq!(
        desk.post_bytes("/register", &headers, body).await.error(),
        (403, Value::Null)
    );
    assert_eq!(desk.get("/services").await, json!({"services": []}));
}

#[tokio::test]
#[contract("S39")]
async fn a_forbidden_address_is_refused_at_once_and_a_name_for_it_when_it_is_connected_to() {
    let desk = IndexerFixture::open();
    let answer = desk
        .post(
            "/register",
            &engine("tcp://169.254.169.254:80", "i", &json!({})),
        )
        .await;
    assert_eq!(answer.error(), (403, json!("endpoint")));
    // A spelling that only the resolver reads as the same address.
    desk.done("/register", &engine("tcp://2852039166:80", "i", &json!({})))
        .await;
    let refused = |service: &Value| {
        service["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("is link-local"))
    };
    let service = desk.until_service("the refusal", refused).await;
    assert_eq!(service["state"], "connecting");
}

#[tokio::test]
#[contract("MC12")]
async fn a_query_creates_no_state_whatever_it_asks() {
    let desk = IndexerFixture::open();
    let one = TestPublisher::bind().await;
    desk.done("/register", &engine(&one.endpoint, "i", &json!({})))
        .await;
    one.until_followed_by(1).await;
    one.store(&StoredSequence {
        tokens: &[1; 8],
        ..StoredSequence::default()
    });
    let held = json!({"longest_matched": 8, "GPU": 8, "DP": {"0": 8}, "CPU": 0, "DISK": 0});
    desk.until(
        "/query",
        &query(&[1; 8], &json!({})),
        &json!({"default": {"i": held}}),
    )
    .await;
    let (before, services) = (
        desk.index.stats(),
        desk.get("/services").await["services"]
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
            desk.done("/query", &query(&[n; 64], &changes)).await,
            json!({"default": {"i": zeros}})
        );
        let tenant = json!({"tenant_id": format!("t{n}"), "instance_id": "i"});
        assert_eq!(
            desk.done("/query", &query(&[n; 64], &tenant)).await,
            json!({})
        );
    }
    assert_eq!(desk.index.stats(), before);
    assert_eq!(
        desk.get("/services").await["services"]
            .as_array()
            .unwrap()
            .len(),
        services
    );
}

#[tokio::test]
#[contract("MC12")]
async fn there_is_a_most_of_registrations_and_each_that_goes_makes_room() {
    let desk = IndexerFixture::open();
    let nobody = |n: u32| engine("ipc:///nobody/is/here.sock", &format!("i{n}"), &json!({}));
    for n in 0..4096 {
        desk.done("/register", &nobody(n)).await;
    }
    let one_more = desk.post("/register", &nobody(4096)).await;
    assert_eq!(one_more.error(), (503, Value::Null));
    desk.done("/register", &nobody(7)).await;
    let rows = desk.done("/query", &query(&[1; 8], &json!({}))).await;
    assert_eq!(rows["default"].as_object().unwrap().len(), 4096);
    desk.done("/unregister", &json!({"instance_id": "i7", "dp_rank": 0}))
        .await;
    desk.done("/register", &nobody(4096)).await;
}

#[tokio::test]
#[contract("MC12")]
async fn a_long_prompt_is_answered_and_one_that_is_too_long_is_a_413() {
    let desk = IndexerFixture::open();
    let one = TestPublisher::bind().await;
    desk.done("/register", &engine(&one.endpoint, "i", &json!({})))
        .await;
    one.until_followed_by(1).await;
    one.store(&StoredSequence {
        tokens: &[9; 4],
        ..StoredSequence::default()
    });
    let tokens = vec![9; 1 << 20];
    let held = json!({"longest_matched": 4, "GPU": 4, "DP": {"0": 4}, "CPU": 0, "DISK": 0});
    desk.until(
        "/query",
        &query(&tokens, &json!({})),
        &json!({"default": {"i": held}}),
    )
    .await;
    let answer = desk
        .post_bytes("/query", &[], vec![b' '; (32 << 20) + 1])
        .await;
    assert_eq!(answer.error(), (413, Value::Null));
}
