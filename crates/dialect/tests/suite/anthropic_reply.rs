//! Translation of chat replies to messages: complete replies and streams.

use contract_id::contract;
use dialect::{
    ChunkOutcome, MessageStream, SseEvent, SseSplitter, error_from_chat, message_from_chat,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn message(reply: &Value) -> Value {
    serde_json::from_slice(&message_from_chat(reply.to_string().as_bytes(), "asked").unwrap())
        .unwrap()
}

fn with(reply: Value, finish: Value) -> Value {
    message(
        &json!({"id": "chatcmpl-7", "model": "m", "choices": [{"message": reply, "finish_reason": finish}]}),
    )
}

#[test]
fn thinking_text_and_tool_calls_become_blocks_in_a_fixed_order() {
    let reply = message(&json!({
        "id": "chatcmpl-7", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "I look.",
            "reasoning": "Hm.", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, 2.50]}"}},
                {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": ""}}]}}],
        "usage": {"prompt_tokens": 30, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 16}}
    }));
    assert_eq!(
        reply,
        json!({"id": "msg_7", "type": "message", "role": "assistant", "model": "m", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": [1, 2.50]}},
            {"type": "tool_use", "id": "call_2", "name": "g", "input": {}}],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 14, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "output_tokens": 9}})
    );
}

#[test]
fn every_finish_reason_has_a_stop_reason() {
    for (finish, want) in [
        (json!("stop"), "end_turn"),
        (json!("length"), "max_tokens"),
        (json!("tool_calls"), "tool_use"),
        (json!("content_filter"), "refusal"),
        (json!("abort"), "end_turn"),
        (Value::Null, "end_turn"),
    ] {
        assert_eq!(with(json!({"content": "a"}), finish)["stop_reason"], want);
    }
    let call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
    assert_eq!(
        with(
            json!({"content": null, "tool_calls": [call]}),
            json!("stop")
        )["stop_reason"],
        "tool_use"
    );
    let matched = message(
        &json!({"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": "END"}]}),
    );
    assert_eq!(
        (&matched["stop_reason"], &matched["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
    assert_eq!(matched["model"], "asked");
}

#[test]
fn arguments_that_are_not_an_object_are_kept_as_text() {
    let input = |arguments: &str| {
        let call = json!({"id": "c", "function": {"name": "f", "arguments": arguments}});
        with(json!({"tool_calls": [call]}), json!("tool_calls"))["content"][0]["input"].clone()
    };
    assert_eq!(input("{\"a\": "), json!({"arguments": "{\"a\": "}));
    assert_eq!(input("7"), json!({"arguments": "7"}));
    assert_eq!(input("  "), json!({}));
}

#[test]
fn a_reply_that_is_not_a_completion_does_not_translate() {
    for body in [
        &b"{}"[..],
        b"[",
        b"<html>",
        br#"{"choices":[]}"#,
        br#"{"choices":[{"text":"a"}]}"#,
    ] {
        assert_eq!(message_from_chat(body, "m"), None);
    }
}

#[test]
fn a_workers_error_keeps_its_message_in_the_other_dialect() {
    let read = |status, body: &str| -> Value {
        serde_json::from_slice(&error_from_chat(status, body.as_bytes(), "r")).unwrap()
    };
    let want = |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "r"});
    assert_eq!(
        read(400, r#"{"error":{"message":"too \"long\""}}"#),
        want("invalid_request_error", "too \"long\"")
    );
    assert_eq!(
        read(404, r#"{"object":"error","message":"no m"}"#),
        want("not_found_error", "no m")
    );
    assert_eq!(
        read(429, r#"{"error":"slow"}"#),
        want("rate_limit_error", "slow")
    );
    assert_eq!(
        read(422, r#"{"detail":[{"msg":"x"}]}"#),
        want("invalid_request_error", r#"[{"msg":"x"}]"#)
    );
    assert_eq!(
        read(401, "<html>"),
        want(
            "authentication_error",
            "the worker refused the request with status 401"
        )
    );
}

/// The events translated from a stream of these chunks, as name and data.
fn events(chunks: &[Value]) -> (Vec<(String, Value)>, ChunkOutcome) {
    let (mut out, mut last) = (Vec::new(), ChunkOutcome::Going);
    let mut stream = MessageStream::new("asked", 5);
    for chunk in chunks {
        let data = if chunk.is_string() {
            chunk.as_str().unwrap().to_owned()
        } else {
            chunk.to_string()
        };
        last = stream.push(data.as_bytes(), &mut out);
        if last != ChunkOutcome::Going {
            break;
        }
    }
    if last == ChunkOutcome::Going {
        last = stream.finish(&mut out);
    }
    let mut events = Vec::new();
    let mut splitter = SseSplitter::new();
    let pushed = splitter.push(&out, |event| {
        let SseEvent::Data { name, data } = event else {
            panic!("no event is that long")
        };
        let name = String::from_utf8(name.unwrap().into_owned()).unwrap();
        let data: Value = serde_json::from_slice(&data).unwrap();
        assert_eq!(data["type"], name);
        events.push((name, data));
    });
    assert_eq!(pushed.complete, out.len());
    (events, last)
}

fn delta(delta: Value) -> Value {
    json!({"id": "chatcmpl-7", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn finish(reason: &str) -> Value {
    json!({"id": "chatcmpl-7", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn counted() -> Value {
    json!({"id": "chatcmpl-7", "model": "m", "choices": [],
        "usage": {"prompt_tokens": 20, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 16}}})
}

/// A short form of each event.
fn short(events: &[(String, Value)]) -> Vec<String> {
    let short = |(name, data): &(String, Value)| match name.as_str() {
        "content_block_start" => format!(
            "start {} {}",
            data["index"],
            data["content_block"]["type"].as_str().unwrap()
        ),
        "content_block_delta" => {
            let delta = &data["delta"];
            let pieces = ["text", "thinking", "partial_json"]
                .iter()
                .find_map(|name| delta[name].as_str())
                .unwrap();
            format!(
                "{} {} {pieces}",
                data["index"],
                delta["type"].as_str().unwrap()
            )
        }
        "content_block_stop" => format!("stop {}", data["index"]),
        other => other.to_owned(),
    };
    events.iter().map(short).collect()
}

#[test]
fn of_several_choices_the_first_becomes_the_message_in_any_order() {
    let chunk = |index: u32, text: &str, reason: Value| json!({"id": "chatcmpl-7", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason}]});
    let mut together = chunk(1, "other", Value::Null);
    together["choices"]
        .as_array_mut()
        .unwrap()
        .push(json!({"index": 0, "delta": {"content": " well"}}));
    let all = [
        chunk(1, "others", Value::Null),
        chunk(0, "all", Value::Null),
        together,
        chunk(1, "", json!("length")),
        chunk(0, "", json!("stop")),
        chunk(1, " more", Value::Null),
    ];
    let (events, last) = events(&all);
    let pieces = [
        "message_start",
        "start 0 text",
        "0 text_delta all",
        "0 text_delta  well",
        "stop 0",
    ];
    assert_eq!(
        short(&events),
        [&pieces[..], &["message_delta", "message_stop"]].concat()
    );
    assert_eq!(
        (&events[5].1["delta"]["stop_reason"], last),
        (&json!("end_turn"), ChunkOutcome::Whole)
    );

    let choice = |index: u32, text: &str| json!({"index": index, "message": {"content": text}, "finish_reason": "stop"});
    let whole = message(
        &json!({"id": "chatcmpl-7", "choices": [choice(1, "other"), choice(0, "all well")]}),
    );
    assert_eq!(
        whole["content"],
        json!([{"type": "text", "text": "all well"}])
    );
}

#[test]
fn streamed_thinking_text_and_tool_calls_become_consecutive_blocks() {
    let call = |call: Value| delta(json!({"tool_calls": [call]}));
    let (events, last) = events(&[
        delta(json!({"role": "assistant", "content": ""})),
        delta(json!({"reasoning_content": "Hm"})),
        delta(json!({"reasoning_content": "."})),
        delta(json!({"content": "I "})),
        delta(json!({"content": "look."})),
        call(
            json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}),
        ),
        call(json!({"index": 0, "function": {"arguments": "{\"a\""}})),
        call(json!({"index": 0, "function": {"arguments": ": 1}"}})),
        call(
            json!({"index": 1, "id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}),
        ),
        finish("tool_calls"),
        counted(),
        json!("[DONE]"),
    ]);
    assert_eq!(last, ChunkOutcome::Whole);
    assert_eq!(
        short(&events),
        [
            "message_start",
            "start 0 thinking",
            "0 thinking_delta Hm",
            "0 thinking_delta .",
            "stop 0",
            "start 1 text",
            "1 text_delta I ",
            "1 text_delta look.",
            "stop 1",
            "start 2 tool_use",
            "2 input_json_delta {\"a\"",
            "2 input_json_delta : 1}",
            "stop 2",
            "start 3 tool_use",
            "3 input_json_delta {}",
            "stop 3",
            "message_delta",
            "message_stop"
        ]
    );
    let usage = |input, cached, output| json!({"input_tokens": input, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached, "output_tokens": output});
    assert_eq!(
        events[0].1,
        json!({"type": "message_start", "message": {"id": "msg_7", "type": "message", "role": "assistant", "model": "m",
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(5, 0, 0)}})
    );
    assert_eq!(
        events[9].1["content_block"],
        json!({"type": "tool_use", "id": "call_1", "name": "f", "input": {}})
    );
    assert_eq!(
        events[16].1,
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": usage(4, 16, 4)})
    );
}

#[test]
fn a_tool_call_opens_when_its_name_arrives() {
    let call = |call: Value| delta(json!({"tool_calls": [call]}));
    let (events, last) = events(&[
        call(json!({"index": 0, "id": "call_1"})),
        call(json!({"index": 0, "function": {"arguments": "{"}})),
        call(json!({"index": 0, "function": {"name": "f", "arguments": "}"}})),
        finish("tool_calls"),
        json!("[DONE]"),
    ]);
    assert_eq!(last, ChunkOutcome::Whole);
    assert_eq!(
        short(&events)[1..4],
        ["start 0 tool_use", "0 input_json_delta {}", "stop 0"]
    );
}

#[test]
#[contract("I5")]
fn a_cut_stream_ends_without_message_stop() {
    let (events, last) = events(&[delta(json!({"content": "a"}))]);
    assert_eq!(last, ChunkOutcome::Going);
    assert_eq!(
        short(&events),
        ["message_start", "start 0 text", "0 text_delta a"]
    );
}

#[test]
fn a_stream_that_finished_without_done_is_complete() {
    let (events, last) = events(&[delta(json!({"content": "a"})), finish("length")]);
    assert_eq!(last, ChunkOutcome::Whole);
    assert_eq!(events[4].1["delta"]["stop_reason"], "max_tokens");
}

#[test]
#[contract("I5")]
fn a_stream_that_is_not_a_chat_becomes_one_error_event() {
    let call = |call: Value| delta(json!({"tool_calls": [call]}));
    let named = |index: u32| {
        call(json!({"index": index, "id": "c", "function": {"name": "f", "arguments": "{}"}}))
    };
    for chunks in [
        vec![json!("{")],
        vec![json!("7")],
        vec![json!({"error": {"message": "out of memory", "code": 500}})],
        vec![named(0), named(1), named(0)],
        vec![
            call(json!({"index": 0, "id": "c"})),
            call(json!({"index": 1, "id": "d"})),
        ],
        vec![
            call(json!({"index": 0, "id": "c"})),
            finish("tool_calls"),
            json!("[DONE]"),
        ],
    ] {
        let (events, last) = events(&chunks);
        assert_eq!(last, ChunkOutcome::Failed, "{chunks:?}");
        assert_eq!(events.last().unwrap().0, "error", "{chunks:?}");
        assert!(
            !events
                .iter()
                .any(|(name, _)| name == "message_stop" || name == "message_delta"),
            "{chunks:?}"
        );
    }
    let (events, _) = events(&[json!({"error": {"message": "slow down", "code": 429}})]);
    assert_eq!(
        events[0].1["error"],
        json!({"type": "rate_limit_error", "message": "slow down"})
    );
}

proptest! {
    /// In any order of chunks a messages client can read the result: it begins once, its blocks are
    /// consecutive, and its end comes last or not at all.
    #[test]
    fn any_chunks_become_events_in_message_order(chunks in prop::collection::vec(any_chunk(), 0..12)) {
        let (events, last) = events(&chunks);
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        let mut open = None;
        let mut blocks = 0;
        for (at, (name, data)) in events.iter().enumerate() {
            match name.as_str() {
                "message_start" => prop_assert_eq!(at, 0),
                "content_block_start" => {
                    prop_assert_eq!((open, data["index"].as_u64()), (None, Some(blocks)));
                    open = Some(blocks);
                    blocks += 1;
                }
                "content_block_delta" => prop_assert_eq!(data["index"].as_u64(), open),
                "content_block_stop" => prop_assert_eq!(data["index"].as_u64(), open.take()),
                "message_delta" => prop_assert_eq!((open, at + 2), (None, names.len())),
                "message_stop" | "error" => prop_assert_eq!(at + 1, names.len()),
                other => prop_assert!(false, "{}", other),
            }
        }
        prop_assert_eq!(last == ChunkOutcome::Whole, names.last() == Some(&"message_stop"));
        prop_assert_eq!(last == ChunkOutcome::Failed, names.last() == Some(&"error"));
        prop_assert!(names.is_empty() || names[0] == "message_start" || names == ["error"]);
    }
}

/// A valid or invalid chunk of an engine.
fn any_chunk() -> impl Strategy<Value = Value> {
    let piece = prop_oneof![
        Just(json!(null)),
        Just(json!("")),
        Just(json!("a\"\n")),
        Just(json!(7))
    ];
    let call = (0u32..3, piece.clone(), piece.clone(), piece.clone()).prop_map(|(index, id, name, arguments)| {
        json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
    });
    let delta = prop_oneof![
        (
            prop_oneof![
                Just("content"),
                Just("reasoning"),
                Just("reasoning_content"),
                Just("refusal")
            ],
            piece
        )
            .prop_map(|(name, piece)| json!({name: piece})),
        call,
        Just(json!({})),
    ];
    let finish = prop_oneof![8 => Just(json!(null)), 1 => Just(json!("stop")), 1 => Just(json!("tool_calls"))];
    prop_oneof![
        20 => (delta, finish).prop_map(|(delta, finish)| {
            json!({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        }),
        2 => Just(counted()),
        1 => Just(json!("[DONE]")),
        1 => Just(json!({"error": "no"})),
        1 => Just(json!("[")),
    ]
}
