//! A stream is cached as the object that its chunks form, and answers streams and plain requests
//! alike.

use contract_id::contract;
use serde_json::{Value, json};

use super::{CachedRouter, DONE, FINE, chat_body, chat_chunk, status, with};
use crate::harness::{
    PieceGate, Program, RawClient, RawReply, RouterQueries as _, ScriptedReply, SimControls as _,
    chat, chunk, events_of, stream_head, stream_reply, text_of,
};

fn streamed(body: Value) -> Value {
    with(body, "stream", json!(true))
}

fn with_usage(body: Value) -> Value {
    with(
        streamed(body),
        "stream_options",
        json!({"include_usage": true}),
    )
}

fn parsed(reply: &RawReply) -> Vec<Value> {
    let events = events_of(reply);
    let (last, chunks) = events.split_last().expect("there are events");
    assert_eq!(last, "[DONE]");
    chunks
        .iter()
        .map(|chunk| serde_json::from_str(chunk).expect("a chunk is JSON"))
        .collect()
}

#[test]
#[contract("CK29", "CH16", "CH18", "B3")]
fn a_stream_of_a_real_engine_is_replayed_and_answers_plain_requests_if_it_has_usage() {
    let engine = Program::engine(&["--no-kv-events"]);
    let router =
        Program::serve_with("response_cache: {enabled: true}\n", &[engine.url()], &[]).ready(1);
    let send = |body: &Value| {
        RawClient::post(
            &router.data(),
            "/v1/chat/completions",
            body.to_string().as_bytes(),
        )
    };
    let body = with(chat("sim", "Tell me more.", 12), "temperature", json!(0));
    let first = send(&with_usage(body.clone()));
    assert_eq!(status(&first), "MISS not_found");
    let again = send(&with_usage(body.clone()));
    assert_eq!(
        (status(&again).as_str(), again.header("content-type")),
        ("HIT stored", Some("text/event-stream"))
    );
    assert_eq!(text_of(&again), text_of(&first));
    let usage = |reply: &RawReply| parsed(reply).last().expect("a last chunk")["usage"].clone();
    assert!(usage(&first)["completion_tokens"] == 12 && usage(&again) == usage(&first));
    assert!(
        parsed(&again)
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk")
    );
    let plain = parsed(&send(&streamed(body.clone())));
    assert!(
        plain.iter().all(|chunk| chunk["usage"].is_null()),
        "usage only where it is requested"
    );
    let whole = send(&body);
    assert_eq!(
        (status(&whole).as_str(), whole.json()["object"].clone()),
        ("HIT stored", json!("chat.completion"))
    );
    assert_eq!(
        whole.json()["choices"][0]["message"]["content"],
        json!(text_of(&first))
    );
    assert_eq!(whole.json()["usage"], usage(&first));
    assert_eq!(engine.stats()["requests"], 1);
    router.wait_until_idle();
}

#[test]
#[contract("B3", "CH18")]
fn an_entry_without_usage_does_not_answer_a_request_for_usage() {
    let stream = stream_reply(&[
        &chat_chunk("yes", "null"),
        &chat_chunk("", "\"stop\""),
        DONE,
    ]);
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\n",
        ScriptedReply::whole(stream),
    );
    let body = chat_body("why?");
    assert_eq!(cached.status(&streamed(body.clone())), "MISS not_found");
    assert_eq!(cached.status(&streamed(body.clone())), "HIT stored");
    assert_eq!(cached.status(&with_usage(body.clone())), "MISS not_found");
    cached.engine.script(super::fine());
    assert_eq!(cached.status(&body), "MISS not_found");
    // The plain reply has usage, and replaced the other entry.
    assert_eq!(
        [
            cached.status(&with_usage(body.clone())),
            cached.status(&body)
        ],
        ["HIT stored", "HIT stored"]
    );
    assert_eq!(cached.engine.requests(), 3);
}

#[test]
#[contract("CH18", "B3")]
fn a_plain_reply_answers_streams() {
    let cached = CachedRouter::start("");
    cached.status(&chat_body("why?"));
    let replayed = cached.send(&with_usage(chat_body("why?")));
    assert_eq!(
        (status(&replayed).as_str(), text_of(&replayed).as_str()),
        ("HIT stored", "yes")
    );
    let chunks = parsed(&replayed);
    assert!(
        chunks
            .iter()
            .any(|chunk| chunk["choices"][0]["finish_reason"] == "stop")
    );
    assert_eq!(
        chunks.last().expect("a last chunk")["usage"]["total_tokens"],
        4
    );
    let other = with(
        streamed(chat_body("why?")),
        "stream_options",
        json!({"continuous_usage_stats": true}),
    );
    assert_eq!(
        cached.status(&other),
        "BYPASS stream",
        "a replay could not have it"
    );
    let receipt = cached.router.receipt_of(&replayed);
    assert_eq!(
        (&receipt["method"], &receipt["stream"]),
        (&json!("cache_hit"), &json!(true))
    );
}

#[test]
#[contract("CH17")]
fn every_event_is_forwarded_before_the_next_one_exists() {
    let pieces: Vec<Vec<u8>> = (0..4)
        .map(|n| chunk(&chat_chunk(&n.to_string(), "null")))
        .collect();
    let stream = [vec![stream_head()], pieces].concat();
    let gate = PieceGate::new();
    let cached = CachedRouter::with(
        "response_cache: {enabled: true}\n",
        ScriptedReply::Gated(stream, gate.clone()),
    );
    let mut client = RawClient::chat(&cached.router.data(), &streamed(chat_body("why?")));
    // The engine's head; the router's own waits for the first event.
    gate.open();
    for n in 0..4 {
        // The engine has sent only this event.
        gate.open();
        if n == 0 {
            client.head();
        }
        let event = client.chunk().expect("an event");
        let event = String::from_utf8_lossy(&event).into_owned();
        assert!(event.contains(&format!("\"content\":\"{n}\"")), "{event}");
    }
}

#[test]
#[contract("CH27", "S44")]
fn messages_are_cached_as_messages_and_their_streams_are_not_cached() {
    let message = r#"{"id":"msg","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"yes"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}"#;
    let engine = super::ScriptedEngine::with_native_messages(ScriptedReply::whole(
        super::json_reply("200 OK", "", message),
    ));
    let config = "response_cache: {enabled: true}\n";
    let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
    let cached = CachedRouter { router, engine };
    let send = |path: &str, body: &Value| {
        RawClient::post(&cached.router.data(), path, body.to_string().as_bytes())
    };
    let body = chat_body("why?");
    for path in ["/v1/messages", "/anthropic/v1/messages"] {
        let [first, again] = [send(path, &body), send(path, &body)];
        assert_eq!(
            [status(&first), status(&again)],
            ["MISS not_found", "HIT stored"],
            "{path}"
        );
        assert_eq!(
            (again.text().as_str(), again.header("request-id").is_some()),
            (message, true)
        );
    }
    assert_eq!(
        send("/v1/messages", &streamed(body.clone())).header("x-warmroute-cache-reason"),
        Some("stream")
    );
    // A chat completion with the same text is another request in the same cache.
    cached.engine.script(super::fine());
    let [first, again] = [cached.send(&body), cached.send(&body)];
    assert_eq!(
        ([status(&first), status(&again)], again.text()),
        (
            ["MISS not_found".to_owned(), "HIT stored".to_owned()],
            FINE.to_owned()
        )
    );
    assert_eq!(cached.stats()["entries"], 3);
}

#[test]
#[contract("CK29", "B3")]
fn completions_are_cached_in_their_own_format() {
    let engine = Program::engine(&["--no-kv-events"]);
    let router =
        Program::serve_with("response_cache: {enabled: true}\n", &[engine.url()], &[]).ready(1);
    let body = json!({"model": "sim", "prompt": "Once upon", "max_tokens": 6, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true}});
    let send = |body: &Value| {
        RawClient::post(
            &router.data(),
            "/v1/completions",
            body.to_string().as_bytes(),
        )
    };
    let [first, again] = [send(&body), send(&body)];
    assert_eq!(
        [status(&first), status(&again)],
        ["MISS not_found", "HIT stored"]
    );
    let text = |reply: &RawReply| -> String {
        parsed(reply)
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
            .collect()
    };
    assert!(!text(&first).is_empty() && text(&again) == text(&first));
    let whole = send(&with(body, "stream", json!(false)));
    assert_eq!(
        (status(&whole).as_str(), &whole.json()["object"]),
        ("HIT stored", &json!("text_completion"))
    );
    assert_eq!(whole.json()["choices"][0]["text"], json!(text(&first)));
}

#[test]
#[contract("S21")]
fn a_hit_keeps_the_connection_open_for_the_next_request() {
    let cached = CachedRouter::start("");
    cached.status(&chat_body("why?"));
    let body = chat_body("why?").to_string();
    let mut client = RawClient::connect(&cached.router.data());
    for _ in 0..3 {
        client.send("POST", "/v1/chat/completions", &[], body.as_bytes());
        let reply = client.reply();
        assert_eq!(
            (status(&reply).as_str(), reply.text().as_str()),
            ("HIT stored", FINE)
        );
    }
}
