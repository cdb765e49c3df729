//! Messages sent to workers that support only chat completions.

use contract_id::contract;
use serde_json::{Value, json};

use super::{RoutedEngine, events};
use crate::harness::{ScriptedReply, chunk, json_reply, stream_head, stream_reply};

const BODY: &str = r#"{"model":"m","max_tokens":9,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"top_k":1e0}"#;
const CHAT: &str = r#"{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],"max_tokens":9,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"top_k":1e0}"#;

fn streamed() -> String {
    BODY.replace(r#","top_k":1e0"#, r#","stream":true"#)
}

fn data(event: Value) -> Vec<u8> {
    format!("data: {event}\n\n").into_bytes()
}

fn delta(delta: Value, finish: Option<&str>) -> Vec<u8> {
    data(
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}),
    )
}

#[test]
#[contract("V36")]
fn a_message_is_sent_as_a_chat_and_returned_as_a_message() {
    let pair = RoutedEngine::start();
    let reply_body = r#"{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello","tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":20,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}}}"#;
    pair.engine
        .script(ScriptedReply::whole(json_reply("200 OK", "", reply_body)));
    for path in ["/v1/messages", "/anthropic/v1/messages"] {
        let (seen, reply) = pair.carried(path, BODY);
        assert_eq!(seen.line(), "POST /v1/chat/completions HTTP/1.1");
        assert_eq!(String::from_utf8_lossy(&seen.body), CHAT);
        assert_eq!(
            seen.header("content-length").as_deref(),
            Some(&*CHAT.len().to_string())
        );
        assert_eq!(
            reply.text(),
            r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"hello"},{"type":"tool_use","id":"call_1","name":"f","input":{"a": 1}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":16,"output_tokens":4}}"#
        );
        assert_eq!(
            (reply.status, reply.header("x-warmroute-rewrites")),
            (200, Some("messages"))
        );
        assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
        let receipt = pair.receipt(&reply);
        assert_eq!(
            (&receipt["route"], &receipt["rewrites"]),
            (&json!(path), &json!(["messages"]))
        );
        assert_eq!(
            (
                &receipt["outcome"]["prompt_tokens"],
                &receipt["outcome"]["cached_tokens"]
            ),
            (&json!(20), &json!(16))
        );
        assert_eq!(receipt["prompt"]["source"], "text_prefix");
    }
    pair.wait_until_idle();
}

#[test]
#[contract("V36")]
fn chat_chunks_become_message_events() {
    let pair = RoutedEngine::start();
    let usage = json!({"id": "chatcmpl-1", "model": "m", "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 4}});
    let pieces = [
        delta(json!({"role": "assistant", "content": ""}), None),
        delta(json!({"content": "hel"}), None),
        delta(json!({"content": "lo"}), None),
        delta(
            json!({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{\"a\""}}]}),
            None,
        ),
        delta(
            json!({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
            None,
        ),
        delta(json!({}), Some("tool_calls")),
        data(usage),
        b"data: [DONE]\n\n".to_vec(),
    ];
    // The events do not depend on where the bytes are cut.
    let whole = pieces.concat();
    let torn: Vec<&[u8]> = whole.chunks(7).collect();
    let mut bodies = Vec::new();
    for pieces in [pieces.iter().map(Vec::as_slice).collect(), torn] {
        pair.engine
            .script(ScriptedReply::whole(stream_reply(&pieces)));
        let (seen, reply) = pair.carried("/v1/messages", &streamed());
        let sent: Value = serde_json::from_slice(&seen.body).unwrap();
        assert_eq!(
            (&sent["stream"], &sent["stream_options"]),
            (&json!(true), &json!({"include_usage": true}))
        );
        assert_eq!((reply.status, reply.clean), (200, true));
        assert!(
            reply
                .header("content-type")
                .unwrap()
                .starts_with("text/event-stream")
        );
        let names: Vec<String> = events(&reply).into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        let outcome = pair.receipt(&reply)["outcome"].clone();
        assert_eq!(
            (&outcome["kind"], &outcome["finish_reason"]),
            (&json!("ok"), &json!("tool_calls"))
        );
        bodies.push(reply.body);
    }
    assert_eq!(bodies[0], bodies[1]);
    pair.wait_until_idle();
}

#[test]
#[contract("I5", "F1", "F20", "F21")]
fn an_incomplete_message_stream_ends_with_one_error_event_and_uncleanly() {
    let pair = RoutedEngine::start();
    let begun = [
        delta(json!({"role": "assistant"}), None),
        delta(json!({"content": "hel"}), None),
    ]
    .concat();
    let broken = data(json!({"error": {"message": "out of memory", "code": 500}}));
    for (reply, at_the_client) in [
        (
            ScriptedReply::Cut([stream_head(), chunk(&begun)].concat()),
            "api_error",
        ),
        (ScriptedReply::whole(stream_reply(&[&begun])), "api_error"),
        (
            ScriptedReply::whole(stream_reply(&[&begun, &broken])),
            "api_error",
        ),
        (
            ScriptedReply::whole(stream_reply(&[&begun, b"data: {\n\n"])),
            "api_error",
        ),
    ] {
        pair.engine.script(reply);
        let (_, reply) = pair.carried("/v1/messages", &streamed());
        assert!(!reply.clean);
        let events = events(&reply);
        let count = |wanted: &str| events.iter().filter(|(name, _)| name == wanted).count();
        assert_eq!(
            (
                count("error"),
                count("message_delta"),
                count("message_stop")
            ),
            (1, 0, 0),
            "{events:?}"
        );
        let (name, last) = events.last().unwrap();
        assert_eq!(
            (name.as_str(), last["error"]["type"].as_str()),
            ("error", Some(at_the_client))
        );
        assert_eq!(pair.receipt(&reply)["outcome"]["kind"], "upstream_error");
    }
    pair.wait_until_idle();
}

#[test]
#[contract("V36", "F12", "F14", "F16")]
fn errors_have_the_format_of_messages_whatever_their_origin() {
    let pair = RoutedEngine::start();
    let error = |status: &str, body: &str| {
        pair.engine
            .script(ScriptedReply::whole(json_reply(status, "", body)));
        let reply = pair.post("/v1/messages", BODY);
        let reply_body = reply.json();
        assert_eq!(reply_body["type"], "error", "{reply_body}");
        assert_eq!(
            reply_body["request_id"].as_str(),
            reply.header("x-request-id")
        );
        let text = |name: &str| reply_body["error"][name].as_str().unwrap().to_owned();
        (reply.status, text("type"), text("message"))
    };
    let own =
        r#"{"error":{"message":"max_tokens is too large","type":"BadRequestError","code":400}}"#;
    let refused = error("400 Bad Request", own);
    assert_eq!(
        refused,
        (
            400,
            "invalid_request_error".into(),
            "max_tokens is too large".into()
        )
    );
    let throttled = error("429 Too Many Requests", r#"{"error":{"message":"slow"}}"#);
    assert_eq!(throttled, (429, "rate_limit_error".into(), "slow".into()));
    let failed = error(
        "500 Internal Server Error",
        r#"{"error":{"message":"CUDA"}}"#,
    );
    assert_eq!(
        (failed.0, failed.1.as_str(), failed.2.contains("CUDA")),
        (500, "api_error", false)
    );
    let (status, kind, message) = error("200 OK", r#"{"object":"something else"}"#);
    assert_eq!((status, kind.as_str()), (502, "api_error"));
    assert!(message.contains("not in the words"), "{message}");
}

#[test]
fn a_message_that_no_chat_can_express_is_refused_before_anything_is_sent() {
    let pair = RoutedEngine::start();
    let body = BODY.replace(
        r#"{"name":"f","input_schema":{"type":"object"}}"#,
        r#"{"type":"web_search_20250305","name":"w"}"#,
    );
    let reply = pair.post("/v1/messages", &body);
    assert_eq!(
        (reply.status, reply.json()["error"]["type"].as_str()),
        (400, Some("invalid_request_error"))
    );
    assert!(reply.text().contains("tools[0]"), "{}", reply.text());
    assert_eq!(pair.engine.requests(), 0);
    pair.wait_until_idle();
}

#[test]
fn a_long_reply_is_translated_and_an_endless_one_is_refused() {
    let pair = RoutedEngine::start();
    let long = "word ".repeat(600_000);
    let reply_body =
        json!({"id": "1", "choices": [{"message": {"content": long}, "finish_reason": "stop"}]})
            .to_string();
    pair.engine
        .script(ScriptedReply::whole(json_reply("200 OK", "", &reply_body)));
    let (_, reply) = pair.carried("/v1/messages", BODY);
    assert_eq!((reply.status, reply.clean), (200, true));
    assert_eq!(reply.json()["content"][0]["text"], long);
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec();
    pair.engine
        .script(ScriptedReply::Endless(head, chunk(&[b' '; 65_536])));
    let (_, reply) = pair.carried("/v1/messages", BODY);
    assert_eq!(
        (reply.status, reply.json()["error"]["type"].as_str()),
        (502, Some("api_error"))
    );
    pair.wait_until_idle();
}
