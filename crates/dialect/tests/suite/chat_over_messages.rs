//! Translation of chats for workers that support only messages, and of their replies.

use contract_id::contract;
use dialect::{
    ChatStream, ChunkOutcome, CompletionOptions, chat_from_message, chat_to_messages,
    error_from_message, messages_to_chat,
};
use serde_json::{Value, json};

fn message(body: &Value) -> Value {
    let translated = chat_to_messages(body.to_string().as_bytes()).unwrap();
    assert_eq!(translated.untranslatable, None);
    serde_json::from_slice(&translated.body).unwrap()
}

#[test]
fn a_chat_with_tools_translates_to_a_messages_request() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let body = json!({
        "model": "m", "max_tokens": 50, "max_completion_tokens": 60, "stop": ["x", "y"], "stream": true,
        "stream_options": {"include_usage": true}, "seed": 7, "top_k": 4, "temperature": 0.5, "user": "u",
        "messages": [
            {"role": "system", "content": "One."}, {"role": "developer", "content": [{"type": "text", "text": "Two."}]},
            {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]},
            {"role": "assistant", "content": null, "reasoning_content": "Hm", "tool_calls": [call("c1"), call("c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "12"}, {"role": "tool", "tool_call_id": "c2", "content": "13"},
            {"role": "user", "content": "And?"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
        "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "object"}}}
    });
    let used = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": 1}});
    let result =
        |id: &str, text: &str| json!({"type": "tool_result", "tool_use_id": id, "content": text});
    let text = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(
        message(&body),
        json!({
            "model": "m", "max_tokens": 60, "system": [text("One."), text("Two.")],
            "messages": [
                {"role": "user", "content": [text("See"),
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
                    {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}]},
                {"role": "assistant", "content": [used("c1"), used("c2")]},
                {"role": "user", "content": [result("c1", "12"), result("c2", "13"), text("And?")]}],
            "stop_sequences": ["x", "y"], "stream": true,
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
            "metadata": {"user_id": "u"}, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
            "top_k": 4, "temperature": 0.5
        })
    );
}

#[test]
fn a_conversation_survives_translation_in_both_directions() {
    let chat = json!({"model": "m", "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":[1]}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "4"}], "max_tokens": 5, "stop": ["x"]});
    let there = chat_to_messages(chat.to_string().as_bytes()).unwrap().body;
    let back: Value = serde_json::from_slice(&messages_to_chat(&there).unwrap().body).unwrap();
    assert_eq!(back, chat);
}

#[test]
fn each_tool_choice_has_a_messages_counterpart() {
    for (choice, want) in [("auto", "auto"), ("required", "any"), ("none", "none")] {
        let body = json!({"model": "m", "messages": [], "tools": [], "tool_choice": choice});
        assert_eq!(message(&body)["tool_choice"], json!({"type": want}));
    }
    let alone = json!({"model": "m", "messages": [], "tools": [], "parallel_tool_calls": false});
    assert_eq!(
        message(&alone)["tool_choice"],
        json!({"type": "auto", "disable_parallel_tool_use": true})
    );
    assert_eq!(
        message(&json!({"model": "m", "messages": [], "parallel_tool_calls": false}))
            .get("tool_choice"),
        None
    );
}

#[test]
fn a_field_without_a_messages_counterpart_is_named() {
    for (body, names) in [
        (json!({"model": "m", "messages": [], "n": 2}), "n is"),
        (
            json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
            "messages[0]",
        ),
        (
            json!({"model": "m", "messages": [], "response_format": {"type": "json_object"}}),
            "response_format",
        ),
    ] {
        let why = chat_to_messages(body.to_string().as_bytes())
            .unwrap()
            .untranslatable
            .unwrap();
        assert!(why.starts_with(names), "{why}");
    }
}

#[test]
fn a_message_with_thinking_and_tool_calls_becomes_a_completion() {
    let reply = json!({"id": "msg_7", "model": "m", "stop_reason": "tool_use", "content": [
        {"type": "thinking", "thinking": "Hm", "signature": "s"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}], "usage": {"input_tokens": 3, "output_tokens": 2}});
    let chat: Value = serde_json::from_slice(
        &chat_from_message(reply.to_string().as_bytes(), "asked", 7).unwrap(),
    )
    .unwrap();
    assert_eq!(
        chat["choices"][0],
        json!({"index": 0, "message": {"role": "assistant", "content": "ab", "reasoning_content": "Hm", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
            "logprobs": null, "finish_reason": "tool_calls"})
    );
    assert_eq!(
        chat["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    );
    for body in [&b"{}"[..], b"[", br#"{"content":7}"#] {
        assert_eq!(chat_from_message(body, "m", 7), None);
    }
    let refused: Value = serde_json::from_slice(&error_from_message(
        400,
        br#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#,
        "r",
    ))
    .unwrap();
    assert_eq!(refused["error"]["message"], "no");
    assert_eq!(
        (&refused["error"]["type"], &refused["error"]["request_id"]),
        (&json!("invalid_request_error"), &json!("r"))
    );
}

fn chunks(events: &[Value], include_usage: bool) -> (Vec<String>, ChunkOutcome) {
    let mut stream = ChatStream::new(CompletionOptions {
        model: "asked".into(),
        created: 7,
        include_usage,
    });
    let (mut out, mut last) = (Vec::new(), ChunkOutcome::Going);
    for event in events {
        last = stream.push(event.to_string().as_bytes(), &mut out);
        if last != ChunkOutcome::Going {
            break;
        }
    }
    if last == ChunkOutcome::Going {
        last = stream.finish();
    }
    let text = String::from_utf8(out).unwrap();
    (
        text.split_terminator("\n\n")
            .map(|chunk| chunk.strip_prefix("data: ").unwrap().to_owned())
            .collect(),
        last,
    )
}

fn a_stream() -> Vec<Value> {
    let delta = |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    vec![
        json!({"type": "message_start", "message": {"id": "msg_7", "model": "m", "usage": {"input_tokens": 3, "cache_read_input_tokens": 8, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}),
        delta(0, json!({"type": "thinking_delta", "thinking": "Hm"})),
        delta(0, json!({"type": "signature_delta", "signature": "s"})),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "ping"}),
        delta(1, json!({"type": "text_delta", "text": "hi"})),
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "c", "name": "f", "input": {}}}),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{}"})),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 4}}),
        json!({"type": "message_stop"}),
    ]
}

#[test]
fn message_events_become_chat_chunks() {
    let (chunks, last) = chunks(&a_stream(), true);
    assert_eq!(
        (last, chunks.last().map(String::as_str)),
        (ChunkOutcome::Whole, Some("[DONE]"))
    );
    let chunks: Vec<Value> = chunks[..chunks.len() - 1]
        .iter()
        .map(|chunk| serde_json::from_str(chunk).unwrap())
        .collect();
    let deltas: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"])
        .collect();
    assert_eq!(
        deltas,
        [
            &json!({"role": "assistant", "content": ""}),
            &json!({"reasoning_content": "Hm"}),
            &json!({"content": "hi"}),
            &json!({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
            &json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
            &json!({}),
            &Value::Null,
        ]
    );
    assert_eq!(chunks[5]["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(
        chunks[6],
        json!({"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [],
            "usage": {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 8}}})
    );
}

#[test]
#[contract("I5")]
fn only_a_complete_message_completes_the_chat_stream() {
    let all = a_stream();
    let (cut, last) = chunks(&all[..all.len() - 1], true);
    assert_eq!(last, ChunkOutcome::Going);
    assert!(!cut.iter().any(|chunk| chunk == "[DONE]"));
    for bad in [
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        json!(7),
    ] {
        let (failed, last) = chunks(&[all[0].clone(), bad, all[10].clone()], true);
        assert_eq!(last, ChunkOutcome::Failed);
        assert!(
            failed
                .last()
                .unwrap()
                .starts_with(r#"{"error":{"message":"#)
                && failed.len() == 2
        );
    }
    let (plain, _) = chunks(&all, false);
    assert!(!plain.iter().any(|chunk| chunk.contains("usage")));
}
