//! A registered TensorRT-LLM engine, whose events are polled.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{Json, Router, routing::post};
use contract_id::contract;
use serde_json::{Value, json};

use crate::indexer_fixture::{IndexerFixture, engine, on_gpu, query};

const PROMPT: [u32; 8] = [5, 6, 7, 8, 9, 10, 11, 12];

/// Starts an engine that reports one stored sequence, and nothing afterwards.
async fn trtllm() -> String {
    let reported = Arc::new(AtomicBool::new(false));
    let block = |at: usize| {
        let tokens: Vec<Value> = PROMPT[at * 4..at * 4 + 4]
            .iter()
            .map(|token| json!({"type": "unique_token", "token_id": token, "token_extra_id": 0}))
            .collect();
        json!({"type": "stored_block", "block_hash": 70 + at, "tokens": tokens, "cache_level": 0})
    };
    let events = json!([{"event_id": 0, "window_size": 4096,
        "data": {"type": "stored", "parent_hash": null, "blocks": [block(0), block(1)]}}]);
    let answer = move || async move {
        let first = !reported.swap(true, Ordering::Relaxed);
        Json(if first { events } else { json!([]) })
    };
    let routes = Router::new().route("/kv_cache_events", post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

#[tokio::test]
#[contract("MC1", "MC11")]
async fn a_registered_tensorrt_llm_engine_is_polled() {
    let fixture = IndexerFixture::open();
    let url = trtllm().await;
    let body = engine(&url, "trt", &json!({"type": "TensorRT-LLM"}));
    fixture.post_ok("/register", &body).await;
    let expected = json!({"default": {"trt": on_gpu(8)}});
    let request = query(&PROMPT, &json!({}));
    fixture.until("/query", &request, &expected).await;
    let service = fixture
        .until_service("the poll", |service| service["state"] == "live")
        .await;
    assert_eq!(service["type"], "TensorRT-LLM");
    assert_eq!(service["endpoint"], url);
    // Other types have sockets, and a list has no replay.
    let socket = engine(&url, "v", &json!({}));
    assert_eq!(
        fixture.post("/register", &socket).await.error(),
        (400, json!("endpoint"))
    );
    let replayed = engine(
        &url,
        "r",
        &json!({"type": "trtllm", "replay_endpoint": "tcp://127.0.0.1:1"}),
    );
    assert_eq!(
        fixture.post("/register", &replayed).await.error(),
        (400, json!("replay_endpoint"))
    );
}
