//! Translates a whole message, or an error, into a chat completion's.

use crate::{
    RawJson, Usage,
    api_error::OpenAiError,
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
    let mut out = String::with_capacity(body.len() + 256);
    let mut chat = ObjectWriter::open(&mut out);
    let named = reply.member("model").and_then(RawJson::string);
    let id = reply.member("id").and_then(RawJson::string);
    let head = CompletionHead {
        kind: "chat.completion",
        id: &completion_id(id.as_deref()),
        created,
        model: named.as_deref().unwrap_or(model),
    };
    head.write(&mut chat);
    let mut choices = chat.array("choices");
    let mut choice = choices.object();
    choice.number("index", 0);
    let mut message = choice.object("message");
    message.text("role", "assistant");
    match texts(content, "text")?.as_str() {
        "" => message.raw("content", "null"),
        text => message.text("content", text),
    }
    if let Some(thoughts) = texts(content, "thinking").filter(|thoughts| !thoughts.is_empty()) {
        message.text("reasoning_content", &thoughts);
    }
    tool_calls(&mut message, content)?;
    message.close();
    choice.raw("logprobs", "null");
    let stop_reason = reply.member("stop_reason").and_then(RawJson::string);
    choice.text("finish_reason", finish(stop_reason.as_deref()));
    choice.close();
    choices.close();
    write_usage(
        &mut chat,
        reply.member("usage").and_then(usage).unwrap_or_default(),
    );
    chat.close();
    Some(out.into_bytes())
}

/// Returns the blocks of this type.
fn blocks<'a>(
    content: RawJson<'a>,
    kind: &'static str,
) -> Option<impl Iterator<Item = RawJson<'a>>> {
    let is_kind = move |block: &RawJson<'_>| {
        block.member("type").and_then(RawJson::string).as_deref() == Some(kind)
    };
    Some(content.elements()?.filter(is_kind))
}

/// Returns the joined texts of the blocks whose type is also the name of their text.
fn texts(content: RawJson<'_>, kind: &'static str) -> Option<String> {
    let texts =
        blocks(content, kind)?.filter_map(|block| block.member(kind).and_then(RawJson::string));
    Some(texts.collect())
}

fn tool_calls(message: &mut ObjectWriter<'_>, content: RawJson<'_>) -> Option<()> {
    let mut calls = blocks(content, "tool_use")?.peekable();
    if calls.peek().is_some() {
        let mut list = message.array("tool_calls");
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
    Some(())
}

/// The first members of every completion and every chunk.
pub(super) struct CompletionHead<'a> {
    pub(super) kind: &'static str,
    pub(super) id: &'a str,
    /// In Unix seconds.
    pub(super) created: i64,
    pub(super) model: &'a str,
}

impl CompletionHead<'_> {
    pub(super) fn write(&self, chat: &mut ObjectWriter<'_>) {
        chat.text("id", self.id);
        chat.text("object", self.kind);
        chat.number("created", self.created);
        chat.text("model", self.model);
    }
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
    let error = json::object(body).and_then(|reply| reply.member("error"));
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
    let error = OpenAiError {
        message: &message,
        kind: &kind,
        param: None,
        code: &kind,
    };
    error.body(Some(request_id))
}
