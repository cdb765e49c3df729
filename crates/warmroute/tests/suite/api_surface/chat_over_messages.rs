//! Chats sent to workers that support only messages.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chunk,
    json_reply, stream_head, stream_reply,
};

const CHAT: &str = r#"{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],"max_tokens":9}"#;
const MESSAGE: &str = r#"{"model":"m","max_tokens":9,"system":"Be brief.","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#;

fn served(yaml: &str) -> (ScriptedEngine, Program) {
    let engine = ScriptedEngine::with_native_messages(ScriptedReply::Silence);
    let yaml = format!(
        "workers: [{{name: a, url: \"{}\", type: anthropic, models: [m], api_key: k}}]\n{yaml}",
        engine.url()
    );
    let router = Program::serve_with(&yaml, &[], &[]).ready(1);
    (engine, router)
}

fn send(router: &Program, body: &str) -> RawReply {
    RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes())
}

#[test]
#[contract("V36")]
fn a_chat_is_sent_as_a_message_and_returned_as_a_completion() {
    let (engine, router) = served("");
    let reply_body = r#"{"id":"msg_1","type":"message","model":"m","content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"cache_read_input_tokens":8,"output_tokens":2}}"#;
    engine.script(ScriptedReply::whole(json_reply("200 OK", "", reply_body)));
    let reply = send(&router, CHAT);
    let seen = engine.next_request();
    assert_eq!(
        (seen.line().as_str(), &*String::from_utf8_lossy(&seen.body)),
        ("POST /v1/messages HTTP/1.1", MESSAGE)
    );
    assert_eq!(
        (
            seen.header("x-api-key").as_deref(),
            seen.header("authorization")
        ),
        (Some("k"), None)
    );
    assert_eq!(
        (reply.status, reply.header("x-warmroute-rewrites")),
        (200, Some("messages"))
    );
    let body = reply.json();
    assert_eq!(
        body["choices"][0]["message"],
        json!({"role": "assistant", "content": "hello"})
    );
    assert_eq!(body["usage"]["prompt_tokens"], 11);
    assert!(body["created"].as_u64() > Some(1_700_000_000));
    assert_eq!(reply.header("request-id"), None);
    router.wait_until_idle();
}

#[test]
#[contract("V36", "I5")]
fn message_events_become_chunks_and_a_cut_stream_has_no_end() {
    let (engine, router) = served("");
    let event = |data: Value| {
        format!(
            "event: {}\ndata: {data}\n\n",
            data["type"].as_str().unwrap()
        )
        .into_bytes()
    };
    let begun = [
        event(json!({"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3}}})),
        event(json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}})),
    ]
    .concat();
    let ended = [
        event(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}})),
        event(json!({"type": "message_stop"})),
    ]
    .concat();
    let body = CHAT.replace(
        "\"max_tokens\":9",
        r#""max_tokens":9,"stream":true,"stream_options":{"include_usage":true}"#,
    );
    engine.script(ScriptedReply::whole(stream_reply(&[&begun, &ended])));
    let reply = send(&router, &body);
    assert!(reply.clean);
    let text = reply.text();
    assert!(
        text.ends_with("data: [DONE]\n\n")
            && text.contains(r#""prompt_tokens":3,"completion_tokens":2"#),
        "{text}"
    );
    let sent: Value = serde_json::from_slice(&engine.next_request().body).unwrap();
    assert_eq!(
        (&sent["stream"], sent.get("stream_options")),
        (&json!(true), None)
    );
    let receipt = router.receipt_of(&reply);
    assert_eq!(
        (
            &receipt["outcome"]["kind"],
            &receipt["outcome"]["prompt_tokens"]
        ),
        (&json!("ok"), &json!(3))
    );
    for cut in [
        ScriptedReply::Cut([stream_head(), chunk(&begun)].concat()),
        ScriptedReply::whole(stream_reply(&[&begun])),
    ] {
        engine.script(cut);
        let reply = send(&router, &body);
        assert!(
            !reply.clean && !reply.text().contains("[DONE]"),
            "{}",
            reply.text()
        );
        assert!(
            reply.text().contains(r#""code":"stream_interrupted""#),
            "{}",
            reply.text()
        );
    }
    router.wait_until_idle();
}

#[test]
#[contract("V36", "CK21")]
fn errors_have_the_clients_format_and_system_prompts_are_marked_where_configured() {
    let (engine, router) = served("prefix_routing: {anthropic_cache_control_injection: true}\n");
    for (status, code) in [("400 Bad Request", 400), ("429 Too Many Requests", 429)] {
        let reply_body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"no such thing"}}"#;
        engine.script(ScriptedReply::whole(json_reply(status, "", reply_body)));
        let reply = send(&router, CHAT);
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (code, "invalid_request_error")
        );
        assert_eq!(reply.json()["error"]["message"], "no such thing");
        assert_eq!(
            reply.header("x-warmroute-rewrites"),
            Some("messages,cache_control")
        );
    }
    let sent: Value = serde_json::from_slice(&engine.next_request().body).unwrap();
    assert_eq!(
        sent["system"][0]["cache_control"],
        json!({"type": "ephemeral"})
    );
    let reply = send(&router, &CHAT.replace("\"max_tokens\":9", "\"n\":2"));
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (400, "invalid_request")
    );
    router.wait_until_idle();
}
