//! Complete replies without a stream.

use contract_id::contract;
use dialect::{Dialect, NotCacheable, keep_whole};
use serde_json::{Value, json};

fn store(dialect: Dialect, body: &Value) -> Result<bool, NotCacheable> {
    keep_whole(dialect, body.to_string().as_bytes()).map(|stored| stored.has_usage)
}

fn reply() -> Value {
    json!({"id": "c", "object": "chat.completion", "created": 7, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "tool_calls": []}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
}

/// The reply with another value at this pointer.
fn with(pointer: &str, value: Value) -> Value {
    let mut reply = reply();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = reply.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(list) => list.push(value),
        parent => parent[name] = value,
    }
    reply
}

#[test]
fn a_valid_reply_is_stored_unchanged() {
    let body = format!("\n {} \n", serde_json::to_string_pretty(&reply()).unwrap());
    let stored = keep_whole(Dialect::Chat, body.as_bytes()).unwrap();
    assert_eq!(stored.body, body.as_bytes());
    assert!(stored.has_usage);
    assert_eq!(
        store(Dialect::Chat, &with("/usage", Value::Null)),
        Ok(false)
    );
    let completion = json!({"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length"}]});
    assert_eq!(store(Dialect::Completions, &completion), Ok(false));
}

#[test]
#[contract("CH15", "S47", "F21")]
fn a_reply_with_an_error_in_any_choice_is_not_stored() {
    let choice =
        |why: Value| json!({"index": 1, "message": {"content": "a"}, "finish_reason": why});
    let call = |function: Value| json!([{"id": "c", "type": "function", "function": function}]);
    assert_eq!(
        store(Dialect::Chat, &with("/choices/1", choice(json!("length")))),
        Ok(true)
    );
    for (reply, why) in [
        (
            with("/choices/1", choice(json!("error"))),
            NotCacheable::FinishedInError,
        ),
        (
            with("/choices/1", choice(json!("abort"))),
            NotCacheable::FinishedInError,
        ),
        (
            with("/choices/0/finish_reason", json!("error")),
            NotCacheable::FinishedInError,
        ),
        (
            with("/choices/0/finish_reason", Value::Null),
            NotCacheable::NotWhole,
        ),
        (with("/choices", json!([])), NotCacheable::NotWhole),
        (with("/choices/0/index", json!(1)), NotCacheable::NotWhole),
        (with("/choices", Value::Null), NotCacheable::UnknownShape),
        (
            with("/choices/0/message", Value::Null),
            NotCacheable::UnknownShape,
        ),
        (
            with("/error", json!({"code": 500})),
            NotCacheable::ErrorInBand,
        ),
        (
            with("/choices/0/error", json!({"code": 500})),
            NotCacheable::ErrorInBand,
        ),
        (
            with("/choices/0/message/error", json!("x")),
            NotCacheable::ErrorInBand,
        ),
        (with("/object", json!("error")), NotCacheable::ErrorInBand),
        (with("/object", json!("list")), NotCacheable::UnknownShape),
        (
            with(
                "/choices/0/message/tool_calls",
                call(json!({"name": "f", "arguments": "{"})),
            ),
            NotCacheable::ToolArguments,
        ),
        (
            with("/choices/0/message/tool_calls", call(json!({"name": "f"}))),
            NotCacheable::ToolArguments,
        ),
        (
            with(
                "/choices/0/message/function_call",
                json!({"arguments": "x"}),
            ),
            NotCacheable::ToolArguments,
        ),
    ] {
        assert_eq!(store(Dialect::Chat, &reply), Err(why), "{reply}");
    }
    let fine = with(
        "/choices/0/message/tool_calls",
        call(json!({"name": "f", "arguments": "{\"a\": [1]}"})),
    );
    assert_eq!(store(Dialect::Chat, &fine), Ok(true));
    for unreadable in [
        &b""[..],
        b"[]",
        b"<html>",
        b"{\"choices\":[",
        b"{}x",
        b"{\"a\":\"\xff\"}",
    ] {
        assert_eq!(
            keep_whole(Dialect::Chat, unreadable),
            Err(NotCacheable::Unreadable)
        );
    }
}

#[test]
#[contract("CH27")]
fn a_complete_message_is_stored_and_a_response_is_not() {
    let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 2}});
    assert_eq!(store(Dialect::Messages, &message), Ok(true));
    let with = |name: &str, value: Value| {
        let mut changed = message.clone();
        changed[name] = value;
        store(Dialect::Messages, &changed)
    };
    assert_eq!(
        with("stop_reason", Value::Null),
        Err(NotCacheable::NotWhole)
    );
    assert_eq!(with("type", json!("error")), Err(NotCacheable::ErrorInBand));
    assert_eq!(
        with("error", json!({"type": "overloaded_error"})),
        Err(NotCacheable::ErrorInBand)
    );
    assert_eq!(
        with("content", json!("hi")),
        Err(NotCacheable::UnknownShape)
    );
    // An engine keeps state for a response, which a stored copy lacks.
    for dialect in [
        Dialect::Responses,
        Dialect::Embeddings,
        Dialect::Rerank,
        Dialect::Score,
    ] {
        assert_eq!(store(dialect, &reply()), Err(NotCacheable::OtherDialect));
    }
}
