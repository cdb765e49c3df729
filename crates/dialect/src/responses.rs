//! Reads the fields that routing needs from a request to `/v1/responses`. The request itself is
//! forwarded as received.
//!
//! Such a request is routed by the chat that it most likely becomes at an engine. If parts of it
//! are stored at the engine (an earlier response) or have no form in a chat, the chat only
//! resembles the computed prompt.

use std::borrow::Cow;

use crate::{
    Fidelity, RawJson, ViewError,
    json::{ArrayWriter, ObjectWriter, PassedOn},
    tokenize::fields_and_members,
};

/// The fields of a `/v1/responses` request that routing reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponsesView<'a> {
    /// Whether the engine stores the response, so that a later request may continue it.
    pub stored: bool,
    /// The response that this request continues.
    pub previous: Option<Cow<'a, str>>,
    /// The chat that represents the request.
    pub chat: Vec<u8>,
    /// Whether the engine computes exactly that chat.
    pub fidelity: Fidelity,
    /// The members that stand in the body and in the chat.
    pub passed_on: PassedOn,
}

const KEYS: [&str; 11] = [
    "model",
    "input",
    "instructions",
    "tools",
    "store",
    "previous_response_id",
    "conversation",
    "max_output_tokens",
    // Their form differs from that in a chat.
    "tool_choice",
    "messages",
    "reasoning",
];

/// Reads the body.
///
/// ```
/// use dialect::{Fidelity, responses_view};
///
/// let view = responses_view(br#"{"model":"m","instructions":"Be brief.","input":"hi","store":false}"#).unwrap();
/// assert!(!view.stored && view.fidelity == Fidelity::Exact);
/// assert_eq!(
///     String::from_utf8(view.chat).unwrap(),
///     r#"{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}]}"#
/// );
/// ```
///
/// # Errors
///
/// If the body is not one JSON object in UTF-8, or a member that is read here occurs twice.
pub fn responses_view(body: &[u8]) -> Result<ResponsesView<'_>, ViewError> {
    let (found, members) = fields_and_members(body, KEYS)?;
    let [
        model,
        input,
        instructions,
        tools,
        store,
        previous,
        conversation,
        max_tokens,
        _,
        _,
        _,
    ] = found.map(|value| value.filter(|value| !value.is_null()));
    let previous = previous.and_then(RawJson::string);
    let mut out = String::with_capacity(body.len() + 128);
    let mut chat = ObjectWriter::open(&mut out);
    chat.some("model", model);
    let input_fidelity = messages(&mut chat, instructions, input);
    let exact_tools = tools.is_none_or(|tools| functions(&mut chat, tools));
    chat.some("max_tokens", max_tokens);
    let passed_on = chat.pass_on(&members, |name| KEYS.contains(&name));
    chat.close();
    // Stored unless the client disables it: engines differ in their default, and this is the
    // careful reading.
    let stored = store.and_then(RawJson::flag).unwrap_or(true);
    let fidelity = if previous.is_some() || conversation.is_some() || !exact_tools {
        Fidelity::Likeness
    } else {
        input_fidelity
    };
    Ok(ResponsesView {
        stored,
        previous,
        chat: out.into_bytes(),
        fidelity,
        passed_on,
    })
}

/// Writes the messages; items that are none are written as they are.
fn messages(
    chat: &mut ObjectWriter<'_>,
    instructions: Option<RawJson<'_>>,
    input: Option<RawJson<'_>>,
) -> Fidelity {
    let mut fidelity = Fidelity::Exact;
    let mut messages = chat.array("messages");
    if let Some(text) = instructions
        .and_then(RawJson::string)
        .filter(|text| !text.is_empty())
    {
        message(&mut messages, "system", &text);
    }
    match input.and_then(RawJson::string) {
        Some(text) => message(&mut messages, "user", &text),
        None => {
            for item in input.and_then(RawJson::elements).into_iter().flatten() {
                if !plain_message(&mut messages, item) {
                    fidelity = Fidelity::Likeness;
                    messages.next().push_str(item.as_str());
                }
            }
        }
    }
    messages.close();
    fidelity
}

fn message(messages: &mut ArrayWriter<'_>, role: &str, text: &str) {
    let mut message = messages.object();
    message.text("role", role);
    message.text("content", text);
    message.close();
}

/// Writes an item that is a message of text; returns whether it was one.
fn plain_message(messages: &mut ArrayWriter<'_>, item: RawJson<'_>) -> bool {
    let kind = item.member("type").and_then(RawJson::string);
    let Some(role) = item.member("role").and_then(RawJson::string) else {
        return false;
    };
    let Some(content) = item
        .member("content")
        .filter(|_| kind.is_none_or(|kind| kind == "message"))
    else {
        return false;
    };
    if let Some(text) = content.string() {
        message(messages, &role, &text);
        return true;
    }
    let mut texts = Vec::new();
    for part in content.elements().into_iter().flatten() {
        let kind = part.member("type").and_then(RawJson::string);
        if !matches!(kind.as_deref(), Some("input_text" | "output_text" | "text")) {
            return false;
        }
        let Some(text) = part.member("text").and_then(RawJson::string) else {
            return false;
        };
        texts.push(text);
    }
    match &texts[..] {
        [] => false,
        [text] => {
            message(messages, &role, text);
            true
        }
        texts => {
            let mut several = messages.object();
            several.text("role", &role);
            let mut parts = several.array("content");
            for text in texts {
                let mut part = parts.object();
                part.text("type", "text");
                part.text("text", text);
                part.close();
            }
            parts.close();
            several.close();
            true
        }
    }
}

/// Writes the tools; returns whether all of them are functions.
fn functions(chat: &mut ObjectWriter<'_>, tools: RawJson<'_>) -> bool {
    let Some(elements) = tools.elements() else {
        return false;
    };
    let mut all = true;
    let mut list = chat.array("tools");
    for tool in elements {
        if tool.member("type").and_then(RawJson::string).as_deref() != Some("function") {
            all = false;
            continue;
        }
        let mut one = list.object();
        one.text("type", "function");
        let mut function = one.object("function");
        for name in ["name", "description", "parameters", "strict"] {
            function.some(name, tool.member(name));
        }
        function.close();
        one.close();
    }
    list.close();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dialect, PromptPart, view};

    fn read(body: &str) -> (bool, bool, String) {
        let view = responses_view(body.as_bytes()).expect("a good body");
        (
            view.stored,
            view.fidelity == Fidelity::Likeness,
            String::from_utf8(view.chat).expect("text"),
        )
    }

    #[test]
    fn a_response_is_stored_by_default() {
        assert!(read(r#"{"model":"m","input":"a"}"#).0);
        assert!(read(r#"{"model":"m","input":"a","store":null}"#).0);
        assert!(read(r#"{"model":"m","input":"a","store":true}"#).0);
        assert!(!read(r#"{"model":"m","input":"a","store":false}"#).0);
    }

    #[test]
    fn text_items_become_chat_messages() {
        let (_, approximate, chat) = read(
            r#"{"model":"m","input":[{"role":"developer","content":"d"},
                {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
                {"type":"message","role":"assistant","content":[{"type":"output_text","text":"c"}]}],
                "tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"max_output_tokens":5,"temperature":0}"#,
        );
        assert!(!approximate);
        assert_eq!(
            chat,
            concat!(
                r#"{"model":"m","messages":[{"role":"developer","content":"d"},"#,
                r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},"#,
                r#"{"role":"assistant","content":"c"}],"#,
                r#""tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"#,
                r#""max_tokens":5,"temperature":0}"#
            )
        );
        let seen = view(Dialect::Chat, chat.as_bytes()).expect("a chat");
        assert_eq!(seen.max_tokens, Some(5));
        assert!(matches!(seen.prompt, PromptPart::Messages(_)));
    }

    #[test]
    fn stored_context_and_non_text_input_make_the_chat_approximate() {
        for body in [
            r#"{"model":"m","input":"a","previous_response_id":"resp_1"}"#,
            r#"{"model":"m","input":"a","conversation":"c"}"#,
            r#"{"model":"m","input":[{"type":"function_call_output","call_id":"c","output":"4"}]}"#,
            r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]}"#,
            r#"{"model":"m","input":"a","tools":[{"type":"web_search"}]}"#,
        ] {
            let (_, approximate, chat) = read(body);
            assert!(approximate, "{body}");
            view(Dialect::Chat, chat.as_bytes()).expect("a chat all the same");
        }
    }
}
