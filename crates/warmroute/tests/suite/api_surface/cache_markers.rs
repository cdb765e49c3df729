//! Markers on system prompts, and the line that agents' clients change with every request.

use contract_id::contract;
use serde_json::{Value, json};

use super::RoutedEngine;
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, json_reply,
};

const BODY: &str = r#"{ "model":"m","system":"You are terse.", "messages":[{"role":"user","content":"hi"}],"x":1e2 }"#;

fn native(yaml: &str) -> RoutedEngine {
    let engine = ScriptedEngine::speaking_messages(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"type":"message"}"#,
    )));
    RoutedEngine::with(engine, yaml)
}

#[test]
#[contract("CK5", "CK21")]
fn system_prompts_of_messages_are_marked_only_where_that_is_asked_for() {
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
    // Nothing to mark, nothing changed.
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

/// A request of an agent: the line changes, and the marker stands on what was said last.
fn of_agent(n: usize, said: &[&str]) -> String {
    let line =
        format!("x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={n:05x};");
    let message = |(at, text): (usize, &&str)| {
        let mut block = json!({"type": "text", "text": text});
        if at + 1 == said.len() {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
        json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": [block]})
    };
    json!({"model": "m", "max_tokens": 5, "messages": said.iter().enumerate().map(message).collect::<Vec<_>>(),
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

fn goes_to(router: &Program, body: &str) -> String {
    let reply = RawClient::post(&router.data(), "/v1/messages", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("x-warmroute-worker").unwrap().to_owned()
}

#[test]
#[contract("CK19")]
fn requests_that_differ_in_that_line_only_have_the_same_place_on_the_ring() {
    let (_engines, router) = fleet("routing: {policy: prefix_hash}\n");
    let home = goes_to(&router, &of_agent(0, &["task 0"]));
    for n in 1..12 {
        assert_eq!(
            goes_to(&router, &of_agent(n, &[&format!("task {n}")])),
            home
        );
    }
}

#[test]
fn a_conversation_grows_whatever_its_client_changes_around_it() {
    let (_engines, router) = fleet("routing: {policy: random, session: {mode: hard}}\n");
    for talk in 0..4 {
        let first = format!("task {talk}");
        let mut said = vec![first.as_str()];
        let home = goes_to(&router, &of_agent(talk, &said));
        for n in 0..5 {
            said.extend(["done", "and now?"]);
            assert_eq!(
                goes_to(&router, &of_agent(100 * talk + n, &said)),
                home,
                "turn {n}"
            );
        }
    }
}

#[test]
#[contract("I12")]
fn that_line_is_taken_out_only_where_that_is_asked_for() {
    let sent = |pair: &RoutedEngine, path: &str, body: &str| {
        let (seen, reply) = pair.carried(path, body);
        let rewrites = reply.header("x-warmroute-rewrites").map(str::to_owned);
        (
            serde_json::from_slice::<Value>(&seen.body).unwrap(),
            rewrites,
        )
    };
    let body = of_agent(1, &["hi"]);
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
