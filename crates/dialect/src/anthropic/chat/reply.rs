//! Translates a whole message, or an error, into a chat completion's.

use crate::{
    RawJson, Usage,
    api_error::openai_error,
    chunk::usage,
    json::{self, ObjectWriter},
};

/// Returns the reply as a chat completion; `None` if it is no message. `created` is in Unix
/// seconds.
///
/// ```
/// let message = br#"{"id":"msg_1","type":"message","model":"m","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"cache_read_input_tokens":8,"output_tokens":2}}"#;
/// assert_eq!(
///     String::from_utf8(dialect::chat_from_message(message, "m", 7).unwrap()).unwrap(),
///     r#"{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":8}}}"#
/// );
/// ```
pub fn chat_from_message(body: &[u8], model: &str, created: i64) -> Option<Vec<u8>> {
    let reply = json::object(body)?;
    let content = reply.member("content")?;
    let is = |block: &RawJson<'_>, kind: &str| {
        block.member("type").and_then(RawJson::string).as_deref() == Some(kind)
    };
    let texts = |kind: &'static str| -> Option<String> {
        let blocks = content.elements()?.filter(|block| is(block, kind));
        Some(
            blocks
                .filter_map(|block| block.member(kind).and_then(RawJson::string))
                .collect(),
        )
    };
    let mut out = String::with_capacity(body.len() + 256);
    let mut chat = ObjectWriter::open(&mut out);
    let named = reply.member("model").and_then(RawJson::string);
    let id = reply.member("id").and_then(RawJson::string);
    head(
        &mut chat,
        "chat.completion",
        &completion_id(id.as_deref()),
        created,
        named.as_deref().unwrap_or(model),
    );
    let mut choices = chat.array("choices");
    let mut choice = choices.object();
    choice.number("index", 0);
    let mut said = choice.object("message");
    said.text("role", "assistant");
    match texts("text")?.as_str() {
        "" => said.raw("content", "null"),
        text => said.text("content", text),
    }
    if let Some(thoughts) = texts("thinking").filter(|thoughts| !thoughts.is_empty()) {
        said.text("reasoning_content", &thoughts);
    }
    let mut calls = content
        .elements()?
        .filter(|block| is(block, "tool_use"))
        .peekable();
    if calls.peek().is_some() {
        let mut list = said.array("tool_calls");
        for call in calls {
            let mut one = list.object();
            one.some("id", call.member("id"));
            one.text("type", "function");
            let mut function = one.object("function");
            function.some("name", call.member("name"));
            function.text(
                "arguments",
                call.member("input").map_or("{}", RawJson::as_str),
            );
            function.close();
            one.close();
        }
        list.close();
    }
    said.close();
    choice.raw("logprobs", "null");
    choice.text(
        "finish_reason",
        finish(
            reply
                .member("stop_reason")
                .and_then(RawJson::string)
                .as_deref(),
        ),
    );
    choice.close();
    choices.close();
    write_usage(
        &mut chat,
        reply.member("usage").and_then(usage).unwrap_or_default(),
    );
    chat.close();
    Some(out.into_bytes())
}

/// Writes the first members of every completion and every chunk.
pub(super) fn head(chat: &mut ObjectWriter<'_>, kind: &str, id: &str, created: i64, model: &str) {
    chat.text("id", id);
    chat.text("object", kind);
    chat.number("created", created);
    chat.text("model", model);
}

pub(super) fn completion_id(message: Option<&str>) -> String {
    let id = message.unwrap_or("0");
    format!("chatcmpl-{}", id.strip_prefix("msg_").unwrap_or(id))
}

/// Returns the finish reason for the stop reason of the message.
pub(super) fn finish(stop_reason: Option<&str>) -> &'static str {
    match stop_reason {
        Some("max_tokens" | "model_context_window_exceeded") => "length",
        Some("tool_use") => "tool_calls",
        Some("refusal") => "content_filter",
        _ => "stop",
    }
}

pub(super) fn write_usage(object: &mut ObjectWriter<'_>, counted: Usage) {
    let mut usage = object.object("usage");
    usage.number("prompt_tokens", counted.prompt_tokens);
    usage.number("completion_tokens", counted.completion_tokens);
    usage.number(
        "total_tokens",
        counted
            .prompt_tokens
            .saturating_add(counted.completion_tokens),
    );
    if let Some(cached) = counted.cached_tokens {
        let mut details = usage.object("prompt_tokens_details");
        details.number("cached_tokens", cached);
        details.close();
    }
    usage.close();
}

/// Translates the error body of a messages request with this status, for a client that sent a chat
/// completion request.
pub fn error_from_message(status: u16, body: &[u8], request_id: &str) -> Vec<u8> {
    let error = json::object(body).and_then(|said| said.member("error"));
    let text = |name: &str| {
        error
            .and_then(|error| error.member(name))
            .and_then(RawJson::string)
    };
    let message = text("message").map_or_else(
        || format!("the worker refused the request with status {status}"),
        std::borrow::Cow::into_owned,
    );
    let kind = text("type").map_or_else(
        || "invalid_request_error".to_owned(),
        std::borrow::Cow::into_owned,
    );
    openai_error(&message, &kind, None, &kind, Some(request_id))
}
