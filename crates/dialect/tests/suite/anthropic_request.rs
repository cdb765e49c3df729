//! Translation of messages requests to chat completions.

use dialect::{Anchor, Dialect, PromptPart, ViewError, messages_to_chat, view};
use proptest::prelude::*;
use serde_json::{Value, json};

fn chat(body: &Value) -> Value {
    let translated = messages_to_chat(body.to_string().as_bytes()).unwrap();
    assert_eq!(translated.untranslatable, None);
    serde_json::from_slice(&translated.body).unwrap()
}

fn chat_messages(messages: Value) -> Value {
    chat(&json!({"model": "m", "messages": messages}))["messages"].clone()
}

#[test]
fn a_conversation_with_tools_translates_to_a_chat_request() {
    let body = json!({
        "model": "m", "max_tokens": 50,
        "system": [{"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": " Very."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather in Kyiv?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I need the tool.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Kyiv"}},
                {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "12"}, {"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "noon", "is_error": false},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}]}],
        "tools": [
            {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
            {"type": "custom", "name": "clock", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "stop_sequences": ["END"], "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "metadata": {"user_id": "u_session_1"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "stream": true, "service_tier": "auto", "priority": 3, "unknown": {"kept": [1e2]}
    });
    assert_eq!(
        chat(&body),
        json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "You are terse. Very."},
                {"role": "user", "content": "Weather in Kyiv?"},
                {"role": "assistant", "content": "I look.", "reasoning_content": "I need the tool.", "tool_calls": [
                    {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Kyiv\"}"}},
                    {"id": "toolu_2", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "12\nrain"},
                {"role": "tool", "tool_call_id": "toolu_2", "content": "noon"},
                {"role": "user", "content": "And?"}],
            "max_tokens": 50, "stop": ["END"], "stream": true, "stream_options": {"include_usage": true},
            "tools": [
                {"type": "function", "function": {"name": "weather", "description": "d",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
                {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}],
            "tool_choice": "required", "parallel_tool_calls": false, "user": "u_session_1",
            "temperature": 0.5, "top_p": 0.9, "top_k": 5, "priority": 3, "unknown": {"kept": [1e2]}
        })
    );
}

#[test]
fn images_and_text_documents_become_content_parts() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let linked =
        json!({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}});
    let text = json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a page"}});
    let part = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        chat_messages(
            json!([{"role": "user", "content": [image, {"type": "text", "text": "What?"}, linked, text]}])
        ),
        json!([{"role": "user", "content": [
            part("data:image/png;base64,AAAA"), {"type": "text", "text": "What?"}, part("https://example.org/a.png"),
            {"type": "text", "text": "a page"}]}])
    );
    // A tool result with an image: the image follows the text.
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "see"}, image]});
    assert_eq!(
        chat_messages(json!([{"role": "user", "content": [result]}])),
        json!([{"role": "tool", "tool_call_id": "t", "content": "see"},
               {"role": "user", "content": [part("data:image/png;base64,AAAA")]}])
    );
}

#[test]
fn a_tool_call_without_text_becomes_a_message_without_content() {
    let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}});
    assert_eq!(
        chat_messages(json!([{"role": "assistant", "content": [call]}])),
        json!([{"role": "assistant", "content": null, "tool_calls": [
            {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]}])
    );
}

#[test]
fn each_tool_choice_has_a_chat_counterpart() {
    for (choice, want) in [
        (json!({"type": "auto"}), json!("auto")),
        (json!({"type": "any"}), json!("required")),
        (json!({"type": "none"}), json!("none")),
        (
            json!({"type": "tool", "name": "f"}),
            json!({"type": "function", "function": {"name": "f"}}),
        ),
    ] {
        let chat = chat(&json!({"model": "m", "messages": [], "tool_choice": choice}));
        assert_eq!(chat["tool_choice"], want);
        assert_eq!(chat.get("parallel_tool_calls"), None);
    }
}

#[test]
fn an_output_schema_becomes_a_response_format() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    for body in [
        json!({"model": "m", "messages": [], "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
        json!({"model": "m", "messages": [], "output_format": {"type": "json_schema", "schema": schema}}),
    ] {
        assert_eq!(
            chat(&body)["response_format"]["json_schema"]["schema"],
            schema
        );
        assert_eq!(chat(&body)["response_format"]["type"], "json_schema");
    }
}

#[test]
fn a_field_without_a_chat_counterpart_is_named() {
    for (body, names) in [
        (
            json!({"model": "m", "messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "tools[0]",
        ),
        (
            json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]}),
            "messages[0]",
        ),
        (
            json!({"model": "m", "messages": [{"role": "user", "content": [
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}}]}]}),
            "messages[0]",
        ),
        (json!({"model": "m", "messages": [], "n": 2}), "n is"),
        (json!({"model": "m", "messages": [], "n": "many"}), "n is"),
    ] {
        let translated = messages_to_chat(body.to_string().as_bytes()).unwrap();
        let why = translated.untranslatable.unwrap();
        assert!(why.starts_with(names) && why.contains("leave it"), "{why}");
        // The body is still valid for routing.
        view(Dialect::Chat, &translated.body).unwrap();
    }
}

#[test]
fn n_is_never_carried_from_a_messages_request_into_a_chat() {
    for one in [json!(1), json!(1.0), Value::Null] {
        let body = chat(&json!({"model": "m", "messages": [], "n": one}));
        assert_eq!(body, json!({"model": "m", "messages": []}), "{one}");
    }
    // Limits and pools use the requested value.
    let several = messages_to_chat(br#"{"model":"m","messages":[],"n":7}"#).unwrap();
    let seen = view(Dialect::Chat, &several.body).unwrap();
    assert_eq!(seen.counts.n, Some(7));
}

#[test]
fn ambiguous_bodies_are_rejected() {
    let refused = |body: &str| messages_to_chat(body.as_bytes()).unwrap_err();
    assert!(matches!(refused("{"), ViewError::Json(_)));
    assert!(matches!(refused("[]"), ViewError::NotAnObject));
    assert_eq!(
        refused(r#"{"system":"a","system":"b"}"#),
        ViewError::DuplicateKey { key: "system" }
    );
    assert_eq!(
        refused(r#"{"n":1,"n":2}"#),
        ViewError::DuplicateKey { key: "n" }
    );
}

#[test]
fn the_prefix_key_ignores_the_volatile_line_and_cache_markers() {
    let key = |hash: &str, marker: bool| {
        let line =
            format!("x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={hash};");
        let mut prompt = json!({"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude."});
        if marker {
            prompt["cache_control"] = json!({"type": "ephemeral"});
        }
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}],
            "system": [{"type": "text", "text": line}, prompt]});
        let chat = messages_to_chat(body.to_string().as_bytes()).unwrap().body;
        Anchor::of(&view(Dialect::Chat, &chat).unwrap())
            .unwrap()
            .key("m", 1024)
    };
    assert_eq!(key("00000", false), key("fa690", true));
}

proptest! {
    #[test]
    fn any_translated_request_is_valid_json(body in anything()) {
        let text = body.to_string();
        if let Ok(translated) = messages_to_chat(text.as_bytes()) {
            let chat: Value = serde_json::from_slice(&translated.body).unwrap();
            prop_assert!(chat.is_object());
            if let Ok(view) = view(Dialect::Chat, &translated.body) {
                prop_assert!(!matches!(view.prompt, PromptPart::Text(_)));
            }
        }
    }
}

/// Objects with valid names and invalid values.
fn anything() -> impl Strategy<Value = Value> {
    let names = prop_oneof![
        Just("model"),
        Just("messages"),
        Just("system"),
        Just("tools"),
        Just("tool_choice"),
        Just("content"),
        Just("type"),
        Just("role"),
        Just("text"),
        Just("source"),
        Just("input"),
        Just("name"),
        Just("stream"),
        Just("metadata"),
        Just("x\"y"),
    ];
    let words = prop_oneof![
        Just("text"),
        Just("image"),
        Just("tool_use"),
        Just("tool_result"),
        Just("document"),
        Just("user"),
        Just("tool"),
        Just("base64"),
        Just("é\u{0}\"\\"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        words.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|members| members
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<Value>()),
        ]
    })
    .prop_map(|value| {
        if value.is_object() {
            value
        } else {
            json!({"model": "m", "messages": value})
        }
    })
}
