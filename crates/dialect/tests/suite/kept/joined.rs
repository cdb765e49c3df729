//! Joining of chunks to one object.

use contract_id::contract;
use dialect::Dialect;
use serde_json::{Value, json};

use super::{chat, read, sse};

/// A chunk of a chat with these choices.
fn chunk(choices: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": choices})
}

fn chunk_of(delta: Value) -> Value {
    chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]))
}

fn finish_chunk(why: &str) -> Value {
    chunk(json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": why}]))
}

/// The message joined from these deltas.
fn message(deltas: &[Value]) -> Value {
    let mut chunks: Vec<_> = deltas.iter().cloned().map(chunk_of).collect();
    chunks.push(finish_chunk("stop"));
    chat(&chunks).unwrap()["choices"][0]["message"].clone()
}

#[test]
#[contract("CK29", "CH18", "B3")]
fn a_stream_is_stored_as_the_object_of_a_complete_reply() {
    let mut usage = chunk(json!([]));
    usage["usage"] = json!({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11});
    usage["system_fingerprint"] = json!("fp");
    let stream = sse(&[
        chunk_of(json!({"role": "assistant", "content": ""})),
        chunk_of(json!({"content": "Hel"})),
        chunk_of(json!({"content": "lo"})),
        finish_chunk("length"),
        usage,
    ]);
    let stored = read(Dialect::Chat, &stream).unwrap();
    assert!(stored.has_usage);
    assert_eq!(
        String::from_utf8(stored.body).unwrap(),
        concat!(
            r#"{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"#,
            r#""message":{"role":"assistant","content":"Hello"},"logprobs":null,"finish_reason":"length"}],"#,
            r#""usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11},"system_fingerprint":"fp"}"#
        )
    );
}

#[test]
#[contract("CK29", "CH18")]
fn a_completion_stream_is_stored_as_a_completion() {
    let chunk = |text: &str, offset: u32, reason: Value| {
        let logprobs = json!({"text_offset": [offset], "token_logprobs": [-0.5], "tokens": [text],
            "top_logprobs": [{"a": -0.5}]});
        json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [
            {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason, "stop_reason": null}]})
    };
    let stored = read(
        Dialect::Completions,
        &sse(&[chunk("ab", 0, Value::Null), chunk("c", 2, json!("stop"))]),
    )
    .unwrap();
    assert!(!stored.has_usage);
    assert_eq!(
        serde_json::from_slice::<Value>(&stored.body).unwrap(),
        json!({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [
            {"index": 0, "text": "abc", "logprobs": {"text_offset": [0, 2], "token_logprobs": [-0.5, -0.5],
                "tokens": ["ab", "c"], "top_logprobs": [{"a": -0.5}, {"a": -0.5}]},
             "finish_reason": "stop", "stop_reason": null}]})
    );
}

#[test]
#[contract("B3")]
fn reasoning_refusals_and_unknown_text_members_are_joined() {
    let message = message(&[
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning": "H", "reasoning_content": "H"}),
        json!({"reasoning": "m.", "reasoning_content": "m."}),
        json!({"content": "ha"}),
        json!({"content": "ha", "refusal": "N"}),
        json!({"content": null, "refusal": "o"}),
        json!({"summary": "in "}),
        json!({"summary": "short"}),
    ]);
    assert_eq!(
        message,
        json!({"role": "assistant", "content": "haha", "reasoning": "Hm.", "reasoning_content": "Hm.", "refusal": "No",
            "summary": "in short"})
    );
}

#[test]
#[contract("B3")]
fn tool_calls_are_joined_by_index() {
    let message = message(&[
        json!({"role": "assistant", "content": ""}),
        json!({"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "own": {"kept": 1},
            "function": {"name": "f", "arguments": ""}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\""}}]}),
        json!({"tool_calls": [{"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{"}},
            {"index": 0, "function": {"name": null, "arguments": ": 1}"}}]}),
        json!({"tool_calls": [{"index": 1, "id": "call_b", "type": "function", "function": {"arguments": "}"}}]}),
        json!({"tool_calls": []}),
    ]);
    assert_eq!(
        message,
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_a", "type": "function", "own": {"kept": 1}, "function": {"name": "f", "arguments": "{\"a\": 1}"}},
            {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]})
    );
    assert!(
        !message["tool_calls"].to_string().contains("index"),
        "a whole reply's calls are not numbered"
    );
}

#[test]
#[contract("B3")]
fn function_calls_and_other_call_types_are_joined() {
    let older = message(&[
        json!({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": ""}}),
        json!({"function_call": {"arguments": "{\"a\":"}}),
        json!({"function_call": {"arguments": "[1]}"}}),
    ]);
    let call = json!({"name": "f", "arguments": "{\"a\":[1]}"});
    assert_eq!(
        older,
        json!({"role": "assistant", "content": null, "function_call": call})
    );
    let custom = message(&[
        json!({"tool_calls": [{"index": 3, "id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls "}}]}),
        json!({"tool_calls": [{"index": 3, "custom": {"input": "-l"}}]}),
    ]);
    let call = json!({"id": "c", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}});
    assert_eq!(
        custom,
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    );
}

#[test]
fn content_is_null_only_if_it_is_null_in_a_complete_reply() {
    let content = |deltas: &[Value]| message(deltas)["content"].clone();
    let call = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]});
    assert_eq!(content(&[json!({"role": "assistant", "content": ""})]), "");
    assert_eq!(content(&[json!({"role": "assistant"})]), Value::Null);
    assert_eq!(content(&[]), Value::Null);
    assert_eq!(
        content(&[json!({"content": ""}), call.clone()]),
        Value::Null
    );
    assert_eq!(content(&[json!({"content": "so"}), call]), "so");
    assert_eq!(
        content(&[json!({"content": ""}), json!({"reasoning": "hm"})]),
        Value::Null
    );
    assert_eq!(
        content(&[json!({"content": ""}), json!({"reasoning": ""})]),
        ""
    );
}

#[test]
#[contract("B3")]
fn interleaved_choices_are_separated() {
    let of = |index: u32, delta: Value| {
        chunk(json!([{"index": index, "delta": delta, "finish_reason": null}]))
    };
    let end =
        |index: u32, why: &str| chunk(json!([{"index": index, "delta": {}, "finish_reason": why}]));
    let both =
        json!([{"index": 1, "delta": {"content": "d"}}, {"index": 0, "delta": {"content": "b"}}]);
    let object = chat(&[
        of(1, json!({"role": "assistant", "content": "c"})),
        of(0, json!({"role": "assistant", "content": "a"})),
        chunk(both),
        end(1, "length"),
        of(0, json!({"content": "!"})),
        end(0, "stop"),
    ])
    .unwrap();
    let choice = |index: u32, text: &str, why: &str| json!({"index": index, "message": {"role": "assistant", "content": text}, "logprobs": null, "finish_reason": why});
    assert_eq!(
        object["choices"],
        json!([choice(0, "ab!", "stop"), choice(1, "cd", "length")])
    );
}

#[test]
#[contract("B3")]
fn logprobs_and_token_ids_are_joined_with_the_text() {
    let piece = |text: &str, id: u32, why: Value| {
        let entry = json!({"token": text, "logprob": -0.25, "bytes": [1], "top_logprobs": []});
        chunk(
            json!([{"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry], "refusal": null},
            "finish_reason": why, "stop_reason": if why.is_null() { why.clone() } else { json!(151_645) }, "token_ids": [id]}]),
        )
    };
    let mut first = chunk_of(json!({"role": "assistant", "content": ""}));
    first["prompt_token_ids"] = json!([5, 6, 7]);
    let object = chat(&[
        first,
        piece("a", 1, Value::Null),
        piece("b", 2, json!("stop")),
    ])
    .unwrap();
    let entry =
        |text: &str| json!({"token": text, "logprob": -0.25, "bytes": [1], "top_logprobs": []});
    let choice = &object["choices"][0];
    assert_eq!(
        choice["logprobs"],
        json!({"content": [entry("a"), entry("b")], "refusal": null})
    );
    assert_eq!(
        (&choice["token_ids"], &choice["stop_reason"]),
        (&json!([1, 2]), &json!(151_645))
    );
    assert_eq!(object["prompt_token_ids"], json!([5, 6, 7]));
}

#[test]
fn a_repeated_member_is_stored_once() {
    let again = json!({"role": "assistant", "type": "message", "content": "a", "weight": 2, "extra": {"a": 1}});
    let first = chunk_of(again.clone());
    let mut azure = json!({"id": "", "object": "", "created": 0, "model": "", "choices": [], "filters": [{"index": 0}]});
    azure["usage"] = Value::Null;
    let mut second = chunk_of(again);
    second["service_tier"] = json!("default");
    second["obfuscation"] = json!("xyzxyz");
    let object = chat(&[
        azure,
        first,
        second,
        finish_chunk("stop"),
        finish_chunk("stop"),
    ])
    .unwrap();
    let message = json!({"role": "assistant", "content": "aa", "type": "message", "weight": 2, "extra": {"a": 1}});
    assert_eq!(
        object,
        json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"}],
            "filters": [{"index": 0}], "service_tier": "default"})
    );
}

#[test]
fn numbers_and_escapes_are_unchanged() {
    let stream = concat!(
        r#"data: {"id":"c","big":123456789012345678901234567890,"choices":[{"index":0,"delta":{"content":"\ud83d"},"#,
        r#""logprobs":{"content":[{"token":"a","logprob":-0.30000000000000000001},{"logprob":1e-400}]},"at":1.50E+2}]}"#,
        "\n\n",
        r#"data: {"choices":[{"index":0,"delta":{"content":"\ude00\u00e9é\/"},"finish_reason":"stop"}]}"#,
        "\n\ndata: [DONE]\n\n",
    );
    let stored = read(Dialect::Chat, stream).unwrap();
    assert_eq!(
        String::from_utf8(stored.body).unwrap(),
        concat!(
            r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","#,
            r#""content":"\ud83d\ude00\u00e9é\/"},"logprobs":{"content":[{"token":"a","logprob":-0.30000000000000000001},"#,
            r#"{"logprob":1e-400}]},"finish_reason":"stop","at":1.50E+2}],"big":123456789012345678901234567890}"#
        )
    );
}

#[test]
fn the_last_usage_is_stored() {
    let counted = |tokens: u32| {
        let mut chunk = chunk_of(json!({"content": "a"}));
        chunk["usage"] = json!({"prompt_tokens": 3, "completion_tokens": tokens});
        chunk
    };
    let mut end = finish_chunk("stop");
    end["usage"] = Value::Null;
    let object = chat(&[counted(1), counted(2), end]).unwrap();
    assert_eq!(
        object["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 2})
    );
}

#[test]
fn comments_event_names_and_line_ends_are_ignored() {
    let chunk = chunk_of(json!({"content": "a"}));
    let stream = format!(
        "\u{feff}: ping\r\n\r\nevent: message\r\ndata: {chunk}\r\n\r\ndata:\n\nretry: 3\n\nid: 1\ndata:{}\n\n: x\n\ndata:[DONE]\n\n\n",
        finish_chunk("stop")
    );
    let stored = read(Dialect::Chat, &stream).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&stored.body).unwrap(),
        chat(&[chunk, finish_chunk("stop")]).unwrap()
    );
}
