//! Translates a messages request into a chat completion request.

use super::{blocks, tools};
use crate::{
    RawJson, ViewError,
    json::{ArrayWriter, ObjectWriter, PassedOn},
    prefix_key::content_text,
    tokenize::fields_and_members,
};

/// A translated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslatedRequest {
    /// The body for `/v1/chat/completions`.
    pub body: Vec<u8>,
    /// The first feature of the request that a chat cannot express; then [`Self::body`] is only
    /// good for routing.
    pub untranslatable: Option<String>,
    /// The members that stand in both bodies.
    pub passed_on: PassedOn,
}

/// Members that are read here. Others are passed on unchanged.
const KEYS: [&str; 17] = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "stop_sequences",
    "stream",
    "tools",
    "tool_choice",
    "metadata",
    "output_config",
    "output_format",
    "thinking",
    "n",
    "stream_options",
    // These concern Anthropic's own servers and do not change an engine's answer.
    "service_tier",
    "cache_control",
    "context_management",
];

/// Translates the request into a chat completion request. Passed-on members keep their order.
///
/// ```
/// use dialect::messages_to_chat;
///
/// let body = br#"{"model":"m","max_tokens":9,"system":"Be brief.","messages":[{"role":"user","content":"hi"}],"top_k":4}"#;
/// let chat = messages_to_chat(body).unwrap();
/// assert_eq!(
///     String::from_utf8(chat.body).unwrap(),
///     r#"{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],"max_tokens":9,"top_k":4}"#
/// );
/// ```
///
/// # Errors
///
/// If the body is not one JSON object in UTF-8, or a member that is read here occurs twice.
pub fn messages_to_chat(body: &[u8]) -> Result<TranslatedRequest, ViewError> {
    let (found, members) = fields_and_members(body, KEYS)?;
    let [
        model,
        messages,
        system,
        max_tokens,
        stop_sequences,
        stream,
        tools,
        tool_choice,
        metadata,
        output_config,
        output_format,
        _thinking,
        n,
        ..,
    ] = found.map(there);
    // Not a member of a messages request, which has one reply; a chat would compute several, of
    // which all but one were lost.
    let several = n.is_some_and(|n| n.integer() != Some(1));
    let mut untranslatable =
        several.then(|| "n is no member of a message, which is one reply: leave it out".to_owned());
    let mut out = String::with_capacity(body.len() + 256);
    let mut chat = ObjectWriter::open(&mut out);
    chat.some("model", model);
    conversation(&mut chat, system, messages, &mut untranslatable);
    chat.some("max_tokens", max_tokens);
    chat.some("stop", stop_sequences);
    chat.some("stream", stream);
    if stream.and_then(RawJson::flag) == Some(true) {
        chat.raw("stream_options", r#"{"include_usage":true}"#);
    }
    tools::tools(&mut chat, tools, &mut untranslatable);
    tools::choice(&mut chat, tool_choice);
    let user = metadata.and_then(|metadata| metadata.member("user_id"));
    chat.some("user", user);
    let format = output_config
        .and_then(|config| config.member("format"))
        .or(output_format);
    let formatted = format.is_some_and(|format| schema(&mut chat, format));
    let written = |name: &str| match name {
        "stop" => stop_sequences.is_some(),
        "user" => user.is_some(),
        "parallel_tool_calls" => tool_choice.is_some(),
        "response_format" => formatted,
        // Routing uses it.
        "n" => !several,
        _ => KEYS.contains(&name),
    };
    let passed_on = chat.pass_on(&members, written);
    chat.close();
    Ok(TranslatedRequest {
        body: out.into_bytes(),
        untranslatable,
        passed_on,
    })
}

fn there(value: Option<RawJson<'_>>) -> Option<RawJson<'_>> {
    value.filter(|value| !value.is_null())
}

/// Writes the messages, the system prompt first.
fn conversation(
    chat: &mut ObjectWriter<'_>,
    system: Option<RawJson<'_>>,
    messages: Option<RawJson<'_>>,
    untranslatable: &mut Option<String>,
) {
    let turns = messages.and_then(RawJson::elements);
    if let (Some(value), None) = (messages, &turns) {
        // The engine rejects a value that is no list.
        return chat.raw("messages", value.as_str());
    }
    let mut messages = chat.array("messages");
    system_message(&mut messages, system);
    for (at, message) in turns.into_iter().flatten().enumerate() {
        blocks::message(&mut messages, message, at, untranslatable);
    }
    messages.close();
}

/// Writes the system prompt as the first message: its text blocks are joined without a separator,
/// as in engines with native messages.
fn system_message(messages: &mut ArrayWriter<'_>, system: Option<RawJson<'_>>) {
    let Some(text) = system
        .and_then(content_text)
        .filter(|text| !text.is_empty())
    else {
        return;
    };
    let mut message = messages.object();
    message.text("role", "system");
    message.text("content", &text);
    message.close();
}

/// Returns whether the reply's schema could be passed on.
fn schema(chat: &mut ObjectWriter<'_>, format: RawJson<'_>) -> bool {
    let is_schema =
        format.member("type").and_then(RawJson::string).as_deref() == Some("json_schema");
    let Some(schema) = format.member("schema").filter(|_| is_schema) else {
        return false;
    };
    let mut format = chat.object("response_format");
    format.text("type", "json_schema");
    let mut schema_format = format.object("json_schema");
    schema_format.text("name", "reply");
    schema_format.some("schema", Some(schema));
    schema_format.raw("strict", "true");
    schema_format.close();
    format.close();
    true
}
