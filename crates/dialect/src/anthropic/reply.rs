//! Translates a whole chat completion into a message.

use std::borrow::Cow;

use crate::{
    RawJson, Usage,
    chunk::usage,
    json::{self, ArrayWriter, ObjectWriter},
};

/// Returns the reply as a message; `None` if it is no chat completion. `model` is the name from the
/// client's request.
///
/// ```
/// let chat = br#"{"id":"chatcmpl-1","model":"m","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],
///                 "usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}"#;
/// assert_eq!(
///     String::from_utf8(dialect::message_from_chat(chat, "m").unwrap()).unwrap(),
///     r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"cache_creation_input_tokens":0,"cache_read_input_tokens":8,"output_tokens":2}}"#
/// );
/// ```
pub fn message_from_chat(body: &[u8], model: &str) -> Option<Vec<u8>> {
    let reply = json::object(body)?;
    let choice = only_choice(reply.member("choices")?)?;
    let chat_message = choice.member("message")?;
    let mut out = String::with_capacity(body.len() + 256);
    let mut message = ObjectWriter::open(&mut out);
    let named = reply.member("model").and_then(RawJson::string);
    let id = reply.member("id").and_then(RawJson::string);
    head(
        &mut message,
        &message_id(id.as_deref()),
        named.as_deref().unwrap_or(model),
    );
    let mut content = message.array("content");
    if let Some(reasoning) = text_of(chat_message, &["reasoning_content", "reasoning"]) {
        let mut block = content.object();
        block.text("type", "thinking");
        block.text("thinking", &reasoning);
        block.text("signature", "");
        block.close();
    }
    if let Some(text) = text_of(chat_message, &["content", "refusal"]) {
        let mut block = content.object();
        block.text("type", "text");
        block.text("text", &text);
        block.close();
    }
    let mut called = false;
    for call in chat_message
        .member("tool_calls")
        .and_then(RawJson::elements)
        .into_iter()
        .flatten()
    {
        called |= tool_use(&mut content, call).is_some();
    }
    content.close();
    let finish = choice.member("finish_reason").and_then(RawJson::string);
    let stop = StopReason::of(finish.as_deref(), choice.member("stop_reason"), called);
    stop.write(&mut message);
    let counted = reply.member("usage").and_then(usage).unwrap_or_default();
    write_usage(&mut message, counted);
    message.close();
    Some(out.into_bytes())
}

/// Returns the choice that becomes the message: the one with index 0, or without an index.
pub(super) fn only_choice(choices: RawJson<'_>) -> Option<RawJson<'_>> {
    let number = |choice: &RawJson<'_>| {
        choice
            .member("index")
            .and_then(RawJson::integer)
            .unwrap_or(0)
    };
    choices.elements()?.find(|choice| number(choice) == 0)
}

/// Writes the first members of every message.
pub(super) fn head(message: &mut ObjectWriter<'_>, id: &str, model: &str) {
    message.text("id", id);
    message.text("type", "message");
    message.text("role", "assistant");
    message.text("model", model);
}

/// Returns the id of a message, derived from that of the completion.
pub(super) fn message_id(completion: Option<&str>) -> String {
    let id = completion.unwrap_or("0");
    format!("msg_{}", id.strip_prefix("chatcmpl-").unwrap_or(id))
}

/// Returns the first non-empty text among these members.
fn text_of<'a>(message: RawJson<'a>, names: &[&str]) -> Option<Cow<'a, str>> {
    names.iter().find_map(|name| {
        message
            .member(name)
            .and_then(RawJson::string)
            .filter(|text| !text.is_empty())
    })
}

fn tool_use(content: &mut ArrayWriter<'_>, call: RawJson<'_>) -> Option<()> {
    let function = call.member("function")?;
    let name = function.member("name").and_then(RawJson::string)?;
    let arguments = function.member("arguments");
    // Some engines send the object itself.
    let arguments = arguments.map(|given| given.string().unwrap_or(Cow::Borrowed(given.as_str())));
    let mut block = content.object();
    block.text("type", "tool_use");
    block.text(
        "id",
        &call
            .member("id")
            .and_then(RawJson::string)
            .unwrap_or_default(),
    );
    block.text("name", &name);
    input(&mut block, arguments.as_deref().unwrap_or_default());
    block.close();
    Some(())
}

/// Writes the input of a tool call: always an object. If the model wrote something else, the object
/// contains that as text.
fn input(block: &mut ObjectWriter<'_>, arguments: &str) {
    if arguments.trim().is_empty() {
        return block.raw("input", "{}");
    }
    match json::whole(arguments) {
        Ok(value) if value.members().is_some() => block.raw("input", value.as_str()),
        _ => {
            let mut unread = block.object("input");
            unread.text("arguments", arguments);
            unread.close();
        }
    }
}

/// The stop reason of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StopReason {
    reason: &'static str,
    sequence: Option<String>,
}

impl StopReason {
    /// `matched`: the stop sequence that ended the reply, from vLLM.
    pub(super) fn of(
        finish_reason: Option<&str>,
        matched: Option<RawJson<'_>>,
        called: bool,
    ) -> Self {
        let sequence = matched.and_then(RawJson::string).map(Cow::into_owned);
        let reason = match finish_reason {
            // An engine with a forced tool reports `stop`.
            Some("stop") | None if called => "tool_use",
            Some("stop") if sequence.is_some() => "stop_sequence",
            Some("length") => "max_tokens",
            Some("tool_calls" | "function_call") => "tool_use",
            Some("content_filter") => "refusal",
            _ => "end_turn",
        };
        Self {
            reason,
            sequence: sequence.filter(|_| reason == "stop_sequence"),
        }
    }

    pub(super) fn write(&self, object: &mut ObjectWriter<'_>) {
        object.text("stop_reason", self.reason);
        match &self.sequence {
            Some(sequence) => object.text("stop_sequence", sequence),
            None => object.raw("stop_sequence", "null"),
        }
    }
}

/// Writes the token counts as Anthropic does: cached tokens are separate from the input.
pub(super) fn write_usage(object: &mut ObjectWriter<'_>, counted: Usage) {
    let cached = counted
        .cached_tokens
        .unwrap_or(0)
        .min(counted.prompt_tokens);
    let mut usage = object.object("usage");
    usage.number("input_tokens", counted.prompt_tokens - cached);
    usage.number("cache_creation_input_tokens", 0);
    usage.number("cache_read_input_tokens", cached);
    usage.number("output_tokens", counted.completion_tokens);
    usage.close();
}
