//! Blocks that one engine reads from another one, which the request names.

use engine_sim::RunningEngine;
use serde_json::{Value, json};

use crate::support::{chat, engine, long_text, post, stats};

const CHAT: &str = "/v1/chat/completions";

/// The request with a source at this port.
fn from_port(port: u16, mut body: Value) -> Value {
    body["kv_transfer_params"] = json!({
        "remote_kv_source": {
            "kv_request_id": "fetch-1",
            "remote_host": "127.0.0.1",
            "remote_port": port,
        }
    });
    body
}

fn from(source: &RunningEngine, body: Value) -> Value {
    let (_, port) = source.http_addr.rsplit_once(':').expect("a port");
    from_port(port.parse().expect("a number"), body)
}

fn cached(reply: &Value) -> u64 {
    let cached = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or_else(|| panic!("{reply}"))
}

#[tokio::test]
async fn blocks_of_the_named_engine_are_read_instead_of_computed() {
    let (source, target) = (engine("").await, engine("--p2p-gb-s 10").await);
    let body = chat(&long_text(300), 8);
    let first = post(&source, CHAT, &body).await.json();
    let prompt = first["usage"]["prompt_tokens"].as_u64().expect("a number");
    let readable = (prompt - 1) / 16 * 16;
    assert!(readable > 0, "{first}");
    let reply = post(&target, CHAT, &from(&source, body.clone()))
        .await
        .json();
    assert_eq!(cached(&reply), readable);
    assert_eq!(stats(&target).await["fetched_tokens"], readable);
    assert_eq!(
        reply["choices"][0]["message"],
        first["choices"][0]["message"]
    );
    // They are its own now.
    let again = post(&target, CHAT, &body).await.json();
    assert_eq!(cached(&again), readable);
    assert_eq!(stats(&target).await["fetched_tokens"], readable);
}

#[tokio::test]
async fn a_source_that_holds_nothing_or_does_not_answer_costs_the_request_time_only() {
    let (source, target) = (engine("").await, engine("--p2p-gb-s 10").await);
    let named = from(&source, chat("of nobody", 4));
    let gone = from_port(1, chat("of nobody else", 4));
    for body in [named, gone] {
        let reply = post(&target, CHAT, &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(stats(&target).await["fetched_tokens"], 0);
}

#[tokio::test]
async fn without_the_tier_a_source_is_ignored_and_a_malformed_one_is_an_error() {
    let (source, target) = (engine("").await, engine("").await);
    let body = chat(&long_text(300), 4);
    post(&source, CHAT, &body).await;
    let reply = post(&target, CHAT, &from(&source, body.clone())).await;
    assert_eq!((reply.status, cached(&reply.json())), (200, 0));
    let mut malformed = body;
    malformed["kv_transfer_params"] = json!({"remote_kv_source": {"remote_host": "127.0.0.1"}});
    assert_eq!(post(&target, CHAT, &malformed).await.status, 400);
}
