//! What a tenant learns of another one's prompts: nothing.
//!
//! The engines have a real prefix cache and honour salts. Each check begins with the positive
//! control that the tenant's own second request is found cached; without it the rest shows nothing.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RoutedFleet, RouterQueries as _, ScriptedEngine, ScriptedReply,
    chat_message, json_reply, words,
};

const TENANTS: &str = "tenants:\n  expose_headers: always\n  api_keys:\n  - {name: a, key: sk-a}\n  - {name: b, key: \
                       sk-b}\n";

/// A request by a tenant, and its settled receipt.
fn send(routed: &RoutedFleet, key: &str, path: &str, body: &Value) -> (RawReply, Value) {
    let headers = [("x-api-key", key)];
    let body = body.to_string();
    let reply = RawClient::post_with(&routed.router.data(), path, &headers, body.as_bytes());
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    routed.caught_up();
    let receipt = routed.router.receipt_of(&reply);
    (reply, receipt)
}

/// Tokens that the router expected to be cached, and that the engine found cached.
fn cached(receipt: &Value) -> (u64, u64) {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{receipt}"));
    let predicted = &receipt["candidates"][0]["predicted_cached_tokens"];
    (
        number(predicted),
        number(&receipt["outcome"]["cached_tokens"]),
    )
}

/// One request for each API by which a prompt reaches an engine.
fn requests(routed: &RoutedFleet) -> Vec<(&'static str, Value)> {
    let text = |topic: &str| words(topic, 60);
    let messages = |topic: &str| vec![chat_message("user", &text(topic))];
    let tokenized = json!({"model": "sim", "prompt": text("ids")}).to_string();
    let ids = RawClient::post(&routed.engines[0].data(), "/tokenize", tokenized.as_bytes());
    let ids = ids.json()["tokens"].clone();
    let mut sglang_ids = ids.as_array().expect("ids").clone();
    sglang_ids.reverse();
    vec![
        (
            "/v1/chat/completions",
            json!({"model": "sim", "messages": messages("chat"), "max_tokens": 2}),
        ),
        (
            "/v1/completions",
            json!({"model": "sim", "prompt": text("completion"), "max_tokens": 2}),
        ),
        (
            "/v1/messages",
            json!({"model": "sim", "messages": messages("message"), "max_tokens": 2}),
        ),
        (
            "/v1/responses",
            json!({"model": "sim", "input": text("response"), "max_output_tokens": 2}),
        ),
        (
            "/inference/v1/generate",
            json!({"model": "sim", "token_ids": ids, "sampling_params": {"max_tokens": 2}}),
        ),
        (
            "/generate",
            json!({"model": "sim", "input_ids": sglang_ids, "sampling_params": {"max_new_tokens": 2}}),
        ),
    ]
}

#[test]
#[contract("S51", "S53", "S54")]
fn no_tenant_finds_the_blocks_of_another_whatever_api_and_salt_it_uses() {
    let routed = RoutedFleet::with(&[&[]], TENANTS, &[]);
    for (path, body) in requests(&routed) {
        send(&routed, "sk-a", path, &body);
        let (reply, own) = send(&routed, "sk-a", path, &body);
        let (predicted, found) = cached(&own);
        assert!(found > 0 && predicted == found, "{path}: {own}");
        let rewrites = reply.header("x-warmroute-rewrites").unwrap_or_default();
        assert!(
            rewrites.split(',').any(|entry| entry == "salt"),
            "{path}: {rewrites}"
        );
        let (_, others) = send(&routed, "sk-b", path, &body);
        assert_eq!(cached(&others), (0, 0), "{path}: {others}");
    }
    // A salt of the client separates its own requests, and reaches no other tenant's.
    let (path, mut body) = requests(&routed).swap_remove(1);
    body["prompt"] = json!(words("salted", 60));
    body["cache_salt"] = json!("mine");
    send(&routed, "sk-a", path, &body);
    assert!(cached(&send(&routed, "sk-a", path, &body).1).1 > 0);
    assert_eq!(cached(&send(&routed, "sk-b", path, &body).1), (0, 0));
    let mut unsalted = body.clone();
    unsalted["cache_salt"] = Value::Null;
    assert_eq!(cached(&send(&routed, "sk-a", path, &unsalted).1), (0, 0));
    routed.router.wait_until_idle();
}

#[test]
#[contract("S52", "S55", "S56")]
fn decisions_without_a_request_tell_a_tenant_of_its_own_blocks_only() {
    let routed = RoutedFleet::with(&[&[], &[]], TENANTS, &[]);
    let body = json!({"model": "sim", "prompt": words("route", 80), "max_tokens": 2});
    send(&routed, "sk-a", "/v1/completions", &body);
    let ask = |key: &str| {
        let text = json!({"model": "sim", "prompt": words("route", 80)}).to_string();
        let headers = [("x-api-key", key)];
        let data = routed.router.data();
        let reply = RawClient::post_with(&data, "/v1/route", &headers, text.as_bytes()).json();
        let candidates = reply["candidates"].as_array().expect("candidates").clone();
        let tokens = |row: &Value| row["predicted_cached_tokens"].as_u64().expect("tokens");
        candidates.iter().map(tokens).sum::<u64>()
    };
    assert!(ask("sk-a") > 0);
    assert_eq!(ask("sk-b"), 0);
}

#[test]
fn tenants_share_blocks_where_isolation_is_off_and_one_alone_sends_no_salt() {
    let shared = TENANTS.replacen("tenants:\n", "tenants:\n  isolation: shared\n", 1);
    let routed = RoutedFleet::with(&[&[]], &shared, &[]);
    let (path, body) = requests(&routed).swap_remove(0);
    let (reply, _) = send(&routed, "sk-a", path, &body);
    assert_eq!(reply.header("x-warmroute-rewrites"), None);
    assert!(cached(&send(&routed, "sk-b", path, &body).1).1 > 0);
    let alone = "api_keys: [{name: a, key: sk-a}]\n";
    let routed = RoutedFleet::with(&[&[]], alone, &[]);
    let (reply, _) = send(&routed, "sk-a", path, &body);
    assert_eq!(reply.header("x-warmroute-rewrites"), None);
}

#[test]
#[contract("S50")]
fn a_router_with_the_same_secret_finds_the_blocks_of_before_and_one_with_another_does_not() {
    let secret = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| std::fs::write(secret.path(), text).expect("it can be written");
    write("first\n");
    let file = format!("  salt_secret_file: {}\n", secret.path().display());
    let config = TENANTS.replacen("tenants:\n", &format!("tenants:\n{file}"), 1);
    let mut routed = RoutedFleet::with(&[&[]], &config, &[]);
    let (path, body) = requests(&routed).swap_remove(0);
    send(&routed, "sk-a", path, &body);
    routed.restart_router();
    assert!(cached(&send(&routed, "sk-a", path, &body).1).1 > 0);
    write("second\n");
    routed.restart_router();
    assert_eq!(cached(&send(&routed, "sk-a", path, &body).1).1, 0);
}

#[test]
#[contract("S56")]
fn one_of_several_tenants_sees_no_worker_in_its_replies() {
    let hidden = TENANTS.replacen("  expose_headers: always\n", "", 1);
    let routed = RoutedFleet::with(&[&[]], &hidden, &[]);
    let (path, body) = requests(&routed).swap_remove(0);
    let headers = [("x-api-key", "sk-a")];
    let body = body.to_string();
    let reply = RawClient::post_with(&routed.router.data(), path, &headers, body.as_bytes());
    assert_eq!(reply.status, 200);
    for name in ["worker", "policy", "decision", "predicted-cached-tokens"] {
        let header = format!("x-warmroute-{name}");
        assert_eq!(reply.header(&header), None, "{header}");
    }
    assert!(reply.header("x-request-id").is_some());
}

#[test]
#[contract("S51", "S43")]
fn what_an_engine_would_not_keep_apart_is_refused_and_ids_are_the_tenants_own() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let router = Program::serve_with(TENANTS, &[engine.url()], &[]).ready(1);
    let body = |more: Value| {
        let mut body = json!({"model": "m", "prompt": "hi", "extra_key": "mine"});
        for (key, value) in more.as_object().expect("fields") {
            body[key] = value.clone();
        }
        body.to_string()
    };
    let post = |key: &str, body: &str| {
        let headers = [("x-api-key", key), ("x-request-id", "r1")];
        RawClient::post_with(&router.data(), "/v1/completions", &headers, body.as_bytes())
    };
    let beams = post("sk-a", &body(json!({"use_beam_search": true})));
    assert_eq!(
        (beams.status, &*beams.error_code()),
        (403, "field_not_allowed")
    );
    assert_eq!(engine.requests(), 0);
    let mut ids = Vec::new();
    for key in ["sk-a", "sk-b"] {
        let reply = post(key, &body(json!({"use_beam_search": false})));
        assert_eq!(
            reply.header("x-request-id"),
            Some("r1"),
            "the client sees its own"
        );
        let seen = engine.next_request();
        let text = String::from_utf8_lossy(&seen.body).into_owned();
        assert!(
            !text.contains("use_beam_search") && !text.contains("extra_key"),
            "{text}"
        );
        assert!(text.contains("\"cache_salt\""), "{text}");
        ids.push(seen.header("x-request-id").expect("an id"));
    }
    assert_ne!(ids[0], ids[1]);
    assert!(!ids.contains(&"r1".to_owned()), "{ids:?}");
}
