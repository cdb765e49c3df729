//! Cache markers on system prompts, and the billing line that agents change with every request.

use contract_id::contract;
use serde_json::{Value, json};

use super::RoutedEngine;
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, json_reply,
};

const BODY: &str = r#"{ "model":"m","system":"You are terse.", "messages":[{"role":"user","content":"hi"}],"x":1e2 }"#;

fn native(yaml: &str) -> RoutedEngine {
    let engine = ScriptedEngine::with_native_messages(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"type":"message"}"#,
    )));
    RoutedEngine::with(engine, yaml)
}

#[test]
#[contract("CK5", "CK21")]
fn system_prompts_of_messages_get_a_cache_marker_only_where_configured() {
    let off = native("");
    let (seen, reply) = off.carried("/v1/messages", BODY);
    assert_eq!(String::from_utf8_lossy(&seen.body), BODY);
    assert_eq!(reply.header("x-warmroute-rewrites"), None);
    drop(off);
    let on = native("prefix_routing: {anthropic_cache_control_injection: true}\n");
    let (seen, reply) = on.carried("/v1/messages", BODY);
    let marked =
        r#"[{"type":"text","text":"You are terse.","cache_control":{"type":"ephemeral"}}]"#;
    assert_eq!(
        String::from_utf8_lossy(&seen.body),
        BODY.replace("\"You are terse.\"", marked)
    );
    assert_eq!(reply.header("x-warmroute-rewrites"), Some("cache_control"));
    // Without a system prompt nothing is marked and nothing changes.
    let plain = r#"{ "model":"m","messages":[{"role":"user","content":"hi"}] }"#;
    let (seen, reply) = on.carried("/anthropic/v1/messages", plain);
    assert_eq!(
        (
            String::from_utf8_lossy(&seen.body),
            reply.header("x-warmroute-rewrites")
        ),
        (plain.into(), None)
    );
}

/// A request of an agent: the billing line changes, and the cache marker is on the last message.
fn agent_request(n: usize, texts: &[&str]) -> String {
    let line =
        format!("x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={n:05x};");
    let message = |(at, text): (usize, &&str)| {
        let mut block = json!({"type": "text", "text": text});
        if at + 1 == texts.len() {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
        json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": [block]})
    };
    json!({"model": "m", "max_tokens": 5, "messages": texts.iter().enumerate().map(message).collect::<Vec<_>>(),
        "system": [{"type": "text", "text": line}, {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}]})
    .to_string()
}

fn fleet(config: &str) -> (Vec<ScriptedEngine>, Program) {
    let chat = r#"{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}"#;
    let engines: Vec<_> = (0..4)
        .map(|_| ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", chat))))
        .collect();
    let workers: Vec<String> = engines.iter().map(ScriptedEngine::url).collect();
    let router = Program::serve_with(config, &workers, &[]).ready(4);
    (engines, router)
}

fn worker_of(router: &Program, body: &str) -> String {
    let reply = RawClient::post(&router.data(), "/v1/messages", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("x-warmroute-worker").unwrap().to_owned()
}

#[test]
#[contract("CK19")]
fn the_billing_line_does_not_change_the_place_on_the_ring() {
    let (_engines, router) = fleet("routing: {policy: prefix_hash}\n");
    let home = worker_of(&router, &agent_request(0, &["task 0"]));
    for n in 1..12 {
        assert_eq!(
            worker_of(&router, &agent_request(n, &[&format!("task {n}")])),
            home
        );
    }
}

#[test]
fn a_conversation_stays_one_session_despite_the_billing_line_and_markers() {
    let (_engines, router) = fleet("routing: {policy: random, session: {mode: hard}}\n");
    for talk in 0..4 {
        let first = format!("task {talk}");
        let mut texts = vec![first.as_str()];
        let home = worker_of(&router, &agent_request(talk, &texts));
        for n in 0..5 {
            texts.extend(["done", "and now?"]);
            assert_eq!(
                worker_of(&router, &agent_request(100 * talk + n, &texts)),
                home,
                "turn {n}"
            );
        }
    }
}

#[test]
#[contract("I12")]
fn the_billing_line_is_removed_only_where_configured() {
    let sent = |pair: &RoutedEngine, path: &str, body: &str| {
        let (seen, reply) = pair.carried(path, body);
        let rewrites = reply.header("x-warmroute-rewrites").map(str::to_owned);
        (
            serde_json::from_slice::<Value>(&seen.body).unwrap(),
            rewrites,
        )
    };
    let body = agent_request(1, &["hi"]);
    let chat = r#"{"model":"m","messages":[{"role":"system","content":"x-anthropic-billing-header: cch=1;You"},{"role":"user","content":"hi"}]}"#;
    let off = native("");
    let (as_it_came, rewrites) = sent(&off, "/v1/messages", &body);
    assert_eq!(
        (as_it_came, rewrites),
        (serde_json::from_str(&body).unwrap(), None)
    );
    drop(off);
    let on = native("prefix_routing: {strip_volatile_prefix: true}\n");
    let (shorter, rewrites) = sent(&on, "/v1/messages", &body);
    assert_eq!(shorter["system"].as_array().map(Vec::len), Some(1));
    assert_eq!(shorter["system"][0]["text"], "You are an agent.");
    assert_eq!(rewrites.as_deref(), Some("volatile_prefix"));
    let (shorter, rewrites) = sent(&on, "/v1/chat/completions", chat);
    assert_eq!(
        (&shorter["messages"][0]["content"], rewrites.as_deref()),
        (&json!("You"), Some("volatile_prefix"))
    );
}
