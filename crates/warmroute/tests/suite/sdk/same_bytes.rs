//! Without translation, a reply through the router equals the engine's byte for byte.
//!
//! The engine's ids are a function of the request's `x-request-id`. Its times are not: `created` is
//! masked.

use serde_json::{Value, json};

use super::SdkBench;
use crate::harness::{Program, RawClient, RawReply};

/// Requests of every kind that the router forwards, each with its distinguishing feature.
fn requests() -> Vec<(&'static str, &'static str, Value)> {
    const CHAT: &str = "/v1/chat/completions";
    const COMPLETIONS: &str = "/v1/completions";
    let tool = json!({"type": "function", "function": {"name": "get_time", "parameters": {
        "type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"],
    }}});
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let chat = |more: Value| {
        merged(
            json!({"model": "sim", "messages": [{"role": "user", "content": "get_time please"}]}),
            more,
        )
    };
    let completion = |more: Value| {
        merged(
            json!({"model": "sim", "prompt": "Once upon", "max_tokens": 9}),
            more,
        )
    };
    vec![
        ("a chat", CHAT, chat(json!({"max_tokens": 9}))),
        (
            "usage in a stream",
            CHAT,
            chat(json!({"max_tokens": 9, "stream_options": {"include_usage": true}})),
        ),
        ("a tool", CHAT, chat(json!({"tools": [tool]}))),
        ("a schema", CHAT, chat(json!({"response_format": format}))),
        (
            "a thought",
            CHAT,
            chat(json!({"chat_template_kwargs": {"enable_thinking": true}})),
        ),
        ("choices", CHAT, chat(json!({"n": 3, "max_tokens": 9}))),
        (
            "log probabilities",
            CHAT,
            chat(json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 9})),
        ),
        (
            "token ids",
            CHAT,
            chat(json!({"return_token_ids": true, "max_tokens": 9})),
        ),
        ("a refusal", CHAT, chat(json!({"n": 0}))),
        ("a completion", COMPLETIONS, completion(json!({}))),
        (
            "a completion's log probabilities",
            COMPLETIONS,
            completion(json!({"logprobs": 2})),
        ),
        (
            "two prompts",
            COMPLETIONS,
            completion(json!({"prompt": ["one", "two"]})),
        ),
        (
            "vectors",
            "/v1/embeddings",
            json!({"model": "sim", "input": ["one", "two"], "encoding_format": "base64"}),
        ),
        (
            "an order",
            "/v1/rerank",
            json!({"model": "sim", "query": "one", "documents": ["two", "three"]}),
        ),
        (
            "scores",
            "/v1/score",
            json!({"model": "sim", "text_1": "one", "text_2": ["two", "three"]}),
        ),
    ]
}

/// Requests for messages and responses, which only the engine with messages gets.
fn native_requests() -> Vec<(&'static str, &'static str, Value)> {
    let messages = json!([{"role": "user", "content": "get_time please"}]);
    let tool = json!({"name": "get_time", "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}}});
    let message = |more: Value| {
        merged(
            json!({"model": "sim", "max_tokens": 40, "messages": messages}),
            more,
        )
    };
    vec![
        (
            "a message",
            "/v1/messages",
            message(json!({"system": "Be brief"})),
        ),
        (
            "a message's tool",
            "/v1/messages",
            message(json!({"tools": [tool]})),
        ),
        (
            "a refused message",
            "/v1/messages",
            message(json!({"messages": []})),
        ),
        (
            "a response",
            "/v1/responses",
            json!({"model": "sim", "input": "Hello", "store": false, "max_output_tokens": 9}),
        ),
    ]
}

fn merged(mut body: Value, more: Value) -> Value {
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

/// The body with its times masked.
fn masked(reply: &RawReply) -> String {
    let (mut masked, text) = (String::new(), reply.text());
    let text = text.replace("\"created_at\":", "\"created\":");
    let mut parts = text.split("\"created\":");
    masked.push_str(parts.next().unwrap_or_default());
    for part in parts {
        masked.push_str("\"created\":0");
        masked.push_str(part.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    }
    masked
}

#[test]
fn a_reply_through_the_router_is_the_engines_byte_for_byte() {
    let bench = SdkBench::start();
    equal(&bench.engine, &bench.router, requests());
    equal(&bench.native, &bench.native_router, native_requests());
}

fn equal(engine: &Program, router: &Program, requests: Vec<(&'static str, &'static str, Value)>) {
    for (what, path, body) in requests {
        for stream in [false, true] {
            let body = merged(body.clone(), json!({"stream": stream})).to_string();
            let send = |address: &str| {
                RawClient::post_with(
                    address,
                    path,
                    &[("x-request-id", "same-1")],
                    body.as_bytes(),
                )
            };
            // The first request fills the cache, so that the later ones find its blocks.
            let [_, direct, routed] =
                [engine.data(), engine.data(), router.data()].map(|at| send(&at));
            assert_eq!(
                (routed.status, routed.clean),
                (direct.status, true),
                "{what}: {}",
                routed.text()
            );
            let status = if what.contains("refus") { 400 } else { 200 };
            assert_eq!(
                direct.status,
                status,
                "{what}, streamed: {stream}: {}",
                direct.text()
            );
            assert_eq!(
                routed.header("content-type"),
                direct.header("content-type"),
                "{what}"
            );
            assert_eq!(
                masked(&routed),
                masked(&direct),
                "{what}, streamed: {stream}"
            );
        }
    }
}
