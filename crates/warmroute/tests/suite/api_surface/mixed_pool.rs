//! Workers with native messages beside workers without.

use std::collections::BTreeSet;

use serde_json::json;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, json_reply,
};

const CHAT: &str =
    r#"{"id":"chatcmpl-1","choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}"#;

#[test]
fn the_worker_is_chosen_first_and_gets_the_request_in_its_own_dialect() {
    let native = ScriptedEngine::with_native_messages(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"type":"message"}"#,
    )));
    let plain = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", CHAT)));
    let workers = [
        format!("native={}", native.url()),
        format!("plain={}", plain.url()),
    ];
    let router = Program::serve(&workers, &["--policy", "round_robin"]).ready(2);
    let mut used = BTreeSet::new();
    for n in 0..6 {
        let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": format!("question {n}")}]});
        let reply = RawClient::post(&router.data(), "/v1/messages", body.to_string().as_bytes());
        assert_eq!(
            (reply.status, &reply.json()["type"]),
            (200, &json!("message"))
        );
        let worker = reply.header("x-warmroute-worker").unwrap().to_owned();
        let (engine, rewrites) = if worker == "native" {
            (&native, None)
        } else {
            (&plain, Some("messages"))
        };
        assert_eq!(reply.header("x-warmroute-rewrites"), rewrites);
        let path = if worker == "native" {
            "/v1/messages"
        } else {
            "/v1/chat/completions"
        };
        assert_eq!(
            engine.next_request().line(),
            format!("POST {path} HTTP/1.1")
        );
        used.insert(worker);
    }
    assert_eq!(used.len(), 2);
}

#[test]
fn a_retry_is_translated_for_the_next_worker() {
    let busy = || ScriptedReply::whole(json_reply("503 Service Unavailable", "", "{}"));
    let native = ScriptedEngine::with_native_messages(busy());
    let plain = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", CHAT)));
    let workers = [
        format!("native={}", native.url()),
        format!("plain={}", plain.url()),
    ];
    let router = Program::serve(&workers, &["--policy", "round_robin"]).ready(2);
    for _ in 0..2 {
        let body = br#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#;
        let reply = RawClient::post(&router.data(), "/v1/messages", body);
        assert_eq!(
            (reply.status, reply.header("x-warmroute-rewrites")),
            (200, Some("messages"))
        );
        assert_eq!(
            reply.json()["content"],
            json!([{"type": "text", "text": "hello"}])
        );
    }
    assert!(native.requests() > 0);
}

#[test]
fn the_configured_dialect_overrides_the_detected_one() {
    let says_native =
        ScriptedEngine::with_native_messages(ScriptedReply::whole(json_reply("200 OK", "", CHAT)));
    let says_nothing = ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"type":"message"}"#,
    )));
    for (engine, word, path) in [
        (&says_native, "translate", "/v1/chat/completions"),
        (&says_nothing, "native", "/v1/messages"),
    ] {
        let yaml = format!(
            "workers:\n  - {{name: a, url: \"{}\", messages: {word}}}\n",
            engine.url()
        );
        let router = Program::serve_with(&yaml, &[], &[]).ready(1);
        let body = br#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#;
        let reply = RawClient::post(&router.data(), "/v1/messages", body);
        assert_eq!(
            (reply.status, &reply.json()["type"]),
            (200, &json!("message"))
        );
        assert_eq!(
            engine.next_request().line(),
            format!("POST {path} HTTP/1.1")
        );
    }
}

#[test]
fn a_message_that_no_chat_can_express_goes_to_a_worker_with_messages() {
    let native = ScriptedEngine::with_native_messages(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"type":"message"}"#,
    )));
    let plain = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", CHAT)));
    let workers = [
        format!("native={}", native.url()),
        format!("plain={}", plain.url()),
    ];
    let router = Program::serve(&workers, &["--policy", "round_robin"]).ready(2);
    let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    for _ in 0..4 {
        let reply = RawClient::post(&router.data(), "/v1/messages", body.to_string().as_bytes());
        assert_eq!(
            (reply.status, reply.header("x-warmroute-worker")),
            (200, Some("native"))
        );
    }
    let receipt = &router.receipts()[0];
    assert_eq!(
        receipt["excluded"],
        json!([{"target": {"worker": "plain", "dp_rank": 0}, "reason": "dialect"}])
    );
    assert_eq!(plain.requests(), 0);
}
