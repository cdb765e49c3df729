//! Messages sent to workers that support messages natively.

use contract_id::contract;
use serde_json::json;

use super::{RoutedEngine, events};
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chunk, json_reply,
    stream_head, stream_reply,
};

const BODY: &str =
    r#"{ "model":"m", "max_tokens":9,"messages":[{"role":"user","content":"hi"}],"x":1e2 }"#;

#[test]
#[contract("V36", "I12")]
fn a_message_and_its_request_cross_byte_for_byte_on_both_paths() {
    let pair = RoutedEngine::native();
    let reply_body = r#"{ "type":"message","usage":{"input_tokens":3,"cache_read_input_tokens":8,"output_tokens":2} }"#;
    pair.engine.script(ScriptedReply::whole(json_reply(
        "200 OK",
        "request-id: theirs\r\n",
        reply_body,
    )));
    for (path, sent) in [
        ("/v1/messages", "/v1/messages"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/anthropic/v1/messages?beta=true", "/v1/messages?beta=true"),
    ] {
        let headers = [
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "b1,b2"),
            ("x-api-key", "client"),
        ];
        let reply = RawClient::post_with(&pair.router.data(), path, &headers, BODY.as_bytes());
        let seen = pair.engine.next_request();
        assert_eq!(seen.line(), format!("POST {sent} HTTP/1.1"));
        assert_eq!(String::from_utf8_lossy(&seen.body), BODY);
        assert_eq!(
            seen.header("anthropic-version").as_deref(),
            Some("2023-06-01")
        );
        assert_eq!(seen.header("anthropic-beta").as_deref(), Some("b1,b2"));
        assert_eq!(seen.header("x-api-key"), None);
        assert_eq!((reply.status, reply.text().as_str()), (200, reply_body));
        assert_eq!(reply.header("x-warmroute-rewrites"), None);
        assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
        let outcome = pair.receipt(&reply)["outcome"].clone();
        assert_eq!(
            (&outcome["prompt_tokens"], &outcome["cached_tokens"]),
            (&json!(11), &json!(8))
        );
        assert_eq!(outcome["completion_tokens"], 2);
    }
}

#[test]
#[contract("V36", "I12")]
fn the_events_of_a_message_cross_byte_for_byte() {
    let pair = RoutedEngine::native();
    let pieces: [&[u8]; 4] = [
        b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n",
        b"event: ping\ndata: {\"type\": \"ping\"}\n\n",
        b"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n",
        b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    ];
    pair.engine
        .script(ScriptedReply::whole(stream_reply(&pieces)));
    for path in ["/v1/messages", "/anthropic/v1/messages"] {
        let (_, reply) = pair.carried(path, &BODY.replace("\"x\":1e2", "\"stream\":true"));
        assert_eq!(
            (reply.clean, &reply.body),
            (true, &pieces.concat()),
            "{path}"
        );
        let outcome = pair.receipt(&reply)["outcome"].clone();
        assert_eq!(
            (&outcome["prompt_tokens"], &outcome["completion_tokens"]),
            (&json!(7), &json!(5)),
            "{path}"
        );
        assert_eq!(outcome["finish_reason"], "end_turn", "{path}");
    }
}

#[test]
#[contract("I5", "F1")]
fn a_cut_message_ends_with_an_error_event_of_its_api_and_uncleanly() {
    let pair = RoutedEngine::native();
    let start = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    pair.engine
        .script(ScriptedReply::Cut([stream_head(), chunk(start)].concat()));
    let (_, reply) = pair.carried(
        "/v1/messages",
        &BODY.replace("\"x\":1e2", "\"stream\":true"),
    );
    assert!(!reply.clean);
    let events = events(&reply);
    let (name, last) = events.last().unwrap();
    assert_eq!(
        (events.len(), name.as_str(), &last["type"]),
        (2, "error", &json!("error"))
    );
    assert_eq!(last["error"]["type"], "api_error");
    assert_eq!(last["request_id"].as_str(), reply.header("x-request-id"));
}

#[test]
#[contract("CH30")]
fn an_anthropic_worker_gets_its_key_and_the_version_in_its_own_headers() {
    let engine = ScriptedEngine::with_native_messages(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"type":"message"}"#,
    )));
    let yaml = format!(
        "workers:\n  - {{name: a, url: \"{}\", type: anthropic, models: [m], api_key: sk-worker}}\n",
        engine.url()
    );
    let router = Program::serve_with(&yaml, &[], &[]).ready(1);
    assert_eq!(
        RawClient::post(&router.data(), "/v1/messages", BODY.as_bytes()).status,
        200
    );
    let seen = engine.next_request();
    assert_eq!(seen.header("x-api-key").as_deref(), Some("sk-worker"));
    assert_eq!(seen.header("authorization"), None);
    assert_eq!(
        seen.header("anthropic-version").as_deref(),
        Some("2023-06-01")
    );
    // Other routes have no counterpart on this worker, and the error names the supported one.
    for (path, body) in [
        ("/v1/completions", r#"{"model":"m","prompt":"a"}"#),
        ("/v1/responses", r#"{"model":"m","input":"a"}"#),
        ("/v1/embeddings", r#"{"model":"m","input":"a"}"#),
        ("/tokenize", r#"{"model":"m","prompt":"a"}"#),
    ] {
        let reply = RawClient::post(&router.data(), path, body.as_bytes());
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (400, "invalid_request"),
            "{path}"
        );
        assert!(reply.text().contains("/v1/messages"), "{}", reply.text());
    }
    assert_eq!(engine.requests(), 1);
}
