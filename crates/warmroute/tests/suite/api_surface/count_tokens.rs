//! `/v1/messages/count_tokens`: counted by the router, by a worker with messages, or from the
//! engine's tokens.

use contract_id::contract;
use serde_json::json;

use super::RoutedEngine;
use crate::harness::{
    Program, RawClient, RoutedFleet, RouterQueries as _, ScriptedEngine, ScriptedReply, json_reply,
    words,
};

const PATH: &str = "/v1/messages/count_tokens";

#[test]
fn the_routers_own_count_equals_the_engines_count() {
    let routed = RoutedFleet::start(&[&[]]);
    let (system, user_text) = (words("system", 30), words("said", 20));
    let body = json!({"model": "sim", "system": system, "messages": [{"role": "user", "content": [{"type": "text", "text": user_text}]}]});
    let reply = RawClient::post(&routed.router.data(), PATH, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let messages = [
        json!({"role": "system", "content": system}),
        json!({"role": "user", "content": user_text}),
    ];
    let turn = routed.chat(&messages, &[]);
    assert_eq!(reply.json(), json!({"input_tokens": turn.prompt_tokens}));
    assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
}

#[test]
fn without_a_tokenizer_a_worker_with_messages_counts() {
    let pair = RoutedEngine::native();
    pair.engine.script(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{ "input_tokens": 7 }"#,
    )));
    let body = r#"{"model":"m", "messages":[{"role":"user","content":"hi"}]}"#;
    let (seen, reply) = pair.carried(PATH, body);
    assert_eq!(seen.line(), format!("POST {PATH} HTTP/1.1"));
    assert_eq!(String::from_utf8_lossy(&seen.body), body);
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, r#"{ "input_tokens": 7 }"#)
    );
}

#[test]
fn without_messages_either_the_engines_own_tokens_are_counted() {
    let engine = ScriptedEngine::start(ScriptedReply::Silence);
    engine.answer(
        "/tokenize",
        "200 OK",
        r#"{"count":5,"max_model_len":100,"tokens":[1,2,3,4,5]}"#,
    );
    let yaml = "models: {defaults: {tokenizer: engine}}\nrouting: {tokenize_budget: 10s}\n";
    let pair = RoutedEngine::with(engine, yaml);
    let reply = pair.post(
        PATH,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#,
    );
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, r#"{"input_tokens":5}"#)
    );
}

#[test]
fn without_any_way_to_count_the_reply_is_404_with_a_hint() {
    let engine = ScriptedEngine::start(ScriptedReply::Silence);
    let router = Program::serve(&[engine.url()], &[]).ready(1);
    let reply = RawClient::post(
        &router.data(),
        PATH,
        br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#,
    );
    assert_eq!(
        (reply.status, reply.json()["error"]["type"].as_str()),
        (404, Some("not_found_error"))
    );
    assert!(reply.text().contains("models.entries"), "{}", reply.text());
}

#[test]
#[contract("I12")]
fn a_billing_line_removed_before_the_count_is_reported() {
    let line = "x-anthropic-billing-header: cch=1;";
    let body = json!({
        "model": "m",
        "system": [{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}],
        "messages": [{"role": "user", "content": "hi"}],
    })
    .to_string();
    let strips = "prefix_routing: {strip_volatile_prefix: true}\n";
    // A worker counts.
    let native = ScriptedEngine::with_native_messages(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"input_tokens":7}"#,
    )));
    let pair = RoutedEngine::with(native, strips);
    let (seen, reply) = pair.carried(PATH, &body);
    assert!(!String::from_utf8_lossy(&seen.body).contains(line));
    assert_eq!(
        (reply.status, reply.header("x-warmroute-rewrites")),
        (200, Some("volatile_prefix"))
    );
    assert_eq!(pair.receipt(&reply)["rewrites"], json!(["volatile_prefix"]));
    // The router counts.
    let engine = ScriptedEngine::start(ScriptedReply::Silence);
    engine.answer(
        "/tokenize",
        "200 OK",
        r#"{"count":5,"max_model_len":100,"tokens":[1,2,3,4,5]}"#,
    );
    let own = format!(
        "models: {{defaults: {{tokenizer: engine}}}}\nrouting: {{tokenize_budget: 10s}}\n{strips}"
    );
    let pair = RoutedEngine::with(engine, &own);
    let reply = pair.post(PATH, &body);
    assert_eq!(
        (reply.status, reply.header("x-warmroute-rewrites")),
        (200, Some("volatile_prefix"))
    );
    let plain = pair.post(
        PATH,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#,
    );
    assert_eq!(
        (plain.status, plain.header("x-warmroute-rewrites")),
        (200, None)
    );
}
