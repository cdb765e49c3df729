//! Replay of a stored reply as a stream.

use contract_id::contract;
use dialect::{Dialect, StreamObject, replay};
use serde_json::{Value, json};

use super::chunks;

fn object(message: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m", "choices": [
        {"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}})
}

fn streamed(object: &Value, include_usage: bool) -> Vec<Value> {
    chunks(&replay(Dialect::Chat, object.to_string().as_bytes(), include_usage).unwrap())
}

fn deltas(object: &Value) -> Vec<Value> {
    streamed(object, false)
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"].clone())
        .collect()
}

#[test]
#[contract("CK29", "CH18")]
fn a_replay_begins_with_the_role_and_ends_with_the_reason_and_done() {
    let stored = object(json!({"role": "assistant", "content": "hi"}));
    let chunk = |choices: Value| json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": choices});
    let piece = |delta: Value, why: Value| {
        chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": why}]))
    };
    let stream = replay(Dialect::Chat, stored.to_string().as_bytes(), false).unwrap();
    assert!(stream.ends_with(b"\n\ndata: [DONE]\n\n"));
    assert_eq!(
        chunks(&stream),
        [
            piece(json!({"role": "assistant", "content": ""}), Value::Null),
            piece(json!({"content": "hi"}), Value::Null),
            piece(json!({}), json!("stop")),
        ]
    );
}

#[test]
#[contract("B3", "CK29")]
fn usage_comes_last_and_only_on_request() {
    let stored = object(json!({"role": "assistant", "content": "hi"}));
    assert!(
        streamed(&stored, false)
            .iter()
            .all(|chunk| chunk.get("usage").is_none())
    );
    let with = streamed(&stored, true);
    let (last, others) = with.split_last().unwrap();
    assert!(
        others
            .iter()
            .all(|chunk| chunk.get("usage") == Some(&Value::Null))
    );
    assert_eq!(
        (&last["choices"], &last["usage"]),
        (&json!([]), &stored["usage"])
    );
    for usage in [Value::Null, json!(7)] {
        let mut without = stored.clone();
        without["usage"] = usage;
        assert_eq!(
            replay(Dialect::Chat, without.to_string().as_bytes(), true),
            None
        );
        assert!(replay(Dialect::Chat, without.to_string().as_bytes(), false).is_some());
    }
}

#[test]
#[contract("B3")]
fn reasoning_comes_before_content_and_tool_calls_after_it() {
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}, "own": 1});
    let stored = object(
        json!({"role": "assistant", "content": "I look.", "tool_calls": [call("a", "{}"), call("b", "[1]")],
        "reasoning": "Hm.", "refusal": null, "annotations": []}),
    );
    let opened = |at: u32, id: &str| {
        json!({"tool_calls": [{"index": at, "id": id, "type": "function",
            "function": {"name": "f", "arguments": ""}, "own": 1}]})
    };
    let argument = |at: u32, text: &str| json!({"tool_calls": [{"index": at, "function": {"arguments": text}}]});
    assert_eq!(
        deltas(&stored),
        [
            json!({"role": "assistant", "content": "", "refusal": null, "annotations": []}),
            json!({"reasoning": "Hm."}),
            json!({"content": "I look."}),
            opened(0, "a"),
            argument(0, "{}"),
            opened(1, "b"),
            argument(1, "[1]"),
            json!({}),
        ]
    );
    let older = object(
        json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}}),
    );
    assert_eq!(
        deltas(&older),
        [
            json!({"role": "assistant", "content": null}),
            json!({"function_call": {"name": "f", "arguments": ""}}),
            json!({"function_call": {"arguments": "{}"}}),
            json!({}),
        ]
    );
}

#[test]
fn long_texts_are_split_into_lines_of_bounded_length() {
    let text = "Ein \"Zahnkranz\" für 7 Gänge 🚲\n".repeat(4_000);
    let arguments = json!({"text": text}).to_string();
    let mut stored = object(
        json!({"role": "assistant", "content": text, "reasoning": text, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]}),
    );
    let entry = json!({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []});
    stored["choices"][0]["logprobs"] = json!({"content": vec![entry; 3_000]});
    stored["choices"][0]["token_ids"] = json!((0..3_000).collect::<Vec<u32>>());
    let stream = replay(Dialect::Chat, stored.to_string().as_bytes(), true).unwrap();
    assert!(
        stream
            .split(|byte| *byte == b'\n')
            .all(|line| line.len() < 48 * 1024)
    );
    let again = StreamObject::read(Dialect::Chat, &[&stream]).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&again.body).unwrap(),
        stored
    );
}

#[test]
#[contract("B3")]
fn logprobs_are_in_the_chunk_of_their_text() {
    let entries = json!([{"token": "h", "logprob": -0.5}, {"token": "i", "logprob": -0.25}]);
    let mut stored = object(json!({"role": "assistant", "content": "hi", "reasoning": "Hm."}));
    stored["choices"][0]["logprobs"] = json!({"content": entries, "refusal": null});
    stored["choices"][0]["token_ids"] = json!([1, 2]);
    stored["choices"][0]["stop_reason"] = json!(2);
    let choices: Vec<_> = streamed(&stored, false)
        .iter()
        .map(|chunk| chunk["choices"][0].clone())
        .collect();
    assert_eq!(
        choices[2],
        json!({"index": 0, "delta": {"content": "hi"}, "logprobs": {"content": entries, "refusal": null},
            "finish_reason": null, "token_ids": [1, 2]})
    );
    assert_eq!(
        choices[3],
        json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop", "stop_reason": 2})
    );
    assert!(
        choices[..2]
            .iter()
            .all(|choice| choice["logprobs"].is_null())
    );
}

#[test]
fn reply_members_are_in_the_first_chunk_and_the_fingerprint_in_all() {
    let mut stored = object(json!({"role": "assistant", "content": "hi"}));
    stored["prompt_token_ids"] = json!([1, 2]);
    stored["system_fingerprint"] = json!("fp");
    stored["service_tier"] = Value::Null;
    let all = streamed(&stored, true);
    assert!(
        all.iter()
            .all(|chunk| chunk["system_fingerprint"] == "fp" && chunk["service_tier"].is_null())
    );
    let having = all
        .iter()
        .map(|chunk| chunk.get("prompt_token_ids").is_some());
    assert_eq!(having.collect::<Vec<_>>(), [true, false, false, false]);
}

#[test]
#[contract("CK29", "CH18")]
fn a_completion_is_replayed_as_completion_chunks() {
    let stored = json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [
        {"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [null, -0.5], "top_logprobs": null,
            "text_offset": [0, 1]}, "finish_reason": "length", "stop_reason": null},
        {"index": 1, "text": "", "logprobs": null, "finish_reason": "stop"}]});
    let stream = replay(Dialect::Completions, stored.to_string().as_bytes(), false).unwrap();
    let chunk = |choice: Value| json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [choice]});
    assert_eq!(
        chunks(&stream),
        [
            chunk(
                json!({"index": 0, "text": "ab", "logprobs": stored["choices"][0]["logprobs"], "finish_reason": null})
            ),
            chunk(
                json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "length", "stop_reason": null})
            ),
            chunk(json!({"index": 1, "text": "", "logprobs": null, "finish_reason": "stop"})),
        ]
    );
    let again = StreamObject::read(Dialect::Completions, &[&stream]).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&again.body).unwrap(),
        stored
    );
}

#[test]
fn line_breaks_in_a_body_do_not_tear_an_event() {
    let stored =
        object(json!({"role": "assistant", "content": "a\n\nb", "own": {"a": [1, {"b": " \n "}]}}));
    let pretty = serde_json::to_string_pretty(&stored).unwrap();
    let stream = replay(Dialect::Chat, pretty.as_bytes(), true).unwrap();
    assert_eq!(
        stream,
        replay(Dialect::Chat, stored.to_string().as_bytes(), true).unwrap()
    );
    let again = StreamObject::read(Dialect::Chat, &[&stream]).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&again.body).unwrap(),
        stored
    );
}

#[test]
#[contract("CH27")]
fn an_object_that_chunks_cannot_express_is_not_replayed() {
    let none = |dialect, object: &Value| {
        assert_eq!(
            replay(dialect, object.to_string().as_bytes(), false),
            None,
            "{object}"
        )
    };
    none(
        Dialect::Chat,
        &object(json!({"role": "assistant", "content": [{"type": "text", "text": "a"}]})),
    );
    none(
        Dialect::Chat,
        &object(
            json!({"role": "assistant", "content": null, "audio": {"id": "a", "data": "AAAA"}}),
        ),
    );
    let mut error = object(json!({"role": "assistant", "content": "a"}));
    none(Dialect::Completions, &error);
    none(Dialect::Messages, &error);
    error["choices"][0]["finish_reason"] = json!("error");
    none(Dialect::Chat, &error);
    none(Dialect::Chat, &json!({}));
    let message = json!({"type": "message", "content": [], "stop_reason": "end_turn"});
    none(Dialect::Messages, &message);
}
