//! The content of a message as text.

use serde_json::{Value, json};

use super::rejection::{refused, unsupported};
use crate::{PromptError, template::ContentFormat};

/// The strictness of the engine's message validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageRules {
    /// The roles of its API.
    Known,
    /// Roles of some templates only.
    Custom,
}

impl MessageRules {
    pub(super) fn of(role: &str) -> Self {
        match role {
            "system" | "developer" | "user" | "assistant" | "tool" => Self::Known,
            _ => Self::Custom,
        }
    }
}

/// A content part that becomes text.
pub(super) enum TextPart {
    Text(String),
    /// The name of a tool whose description the template looks up.
    ToolReference(String),
}

/// Returns the parts of a message's content; a text is one part.
pub(super) fn parts(role: &str, content: Option<Value>) -> Result<Vec<TextPart>, PromptError> {
    match content {
        None => Ok(Vec::new()),
        Some(Value::Null) if matches!(role, "assistant" | "function") => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![TextPart::Text(text)]),
        Some(Value::Array(parts)) => parts
            .into_iter()
            .filter_map(|part| read(part, role).transpose())
            .collect(),
        // The engine's parser iterates over an empty object as over an empty list.
        Some(Value::Object(none))
            if none.is_empty() && MessageRules::of(role) == MessageRules::Known =>
        {
            Ok(Vec::new())
        }
        Some(_) => Err(refused(format!(
            "the content of a message of role {role:?} is neither a text nor a list"
        ))),
    }
}

/// Returns the member with the text of a content part of this type; `None` for a type that does not
/// become text.
pub(super) fn text_key(kind: &str, rules: MessageRules) -> Option<&'static str> {
    match kind {
        "text" => Some("text"),
        "input_text" | "output_text" if rules == MessageRules::Custom => Some("text"),
        "refusal" => Some("refusal"),
        "thinking" => Some("thinking"),
        "tool_reference" => Some("name"),
        _ => None,
    }
}

/// Reads a content part; `None` for one without text where that is allowed.
fn read(part: Value, role: &str) -> Result<Option<TextPart>, PromptError> {
    let rules = MessageRules::of(role);
    let lenient = rules == MessageRules::Custom;
    let mut part = match part {
        Value::String(text) if lenient => return Ok(Some(TextPart::Text(text))),
        Value::Object(part) => part,
        _ => return Err(refused("a content part is no object")),
    };
    let Some(Value::String(kind)) = part.shift_remove("type") else {
        return Err(refused("a content part has no type: expected a string"));
    };
    if part.get("uuid").is_some_and(|id| !id.is_null()) {
        // References to media of earlier requests.
        return Err(unsupported(format!(
            "a content part of type {kind} with a uuid"
        )));
    }
    let Some(key) = text_key(&kind, rules) else {
        return Err(unsupported(format!("a content part of type {kind}")));
    };
    match part.shift_remove(key) {
        Some(Value::String(name)) if kind == "tool_reference" => {
            Ok(Some(TextPart::ToolReference(name)))
        }
        Some(Value::String(text)) => Ok(Some(TextPart::Text(text))),
        Some(Value::Null) | None if lenient => Ok(None),
        _ => Err(refused(format!(
            "a content part of type {kind} has no {key}: expected a string"
        ))),
    }
}

/// Removes the line that one client writes above its instructions and changes in each request. The
/// engine drops it, as otherwise its cache would find none of the rest.
pub(super) fn without_billing_header(parts: Vec<TextPart>) -> Vec<TextPart> {
    let rest = |part| match part {
        TextPart::Text(text) if text.starts_with("x-anthropic-billing-header") => {
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
            (!rest.is_empty()).then(|| TextPart::Text(rest.to_owned()))
        }
        other => Some(other),
    };
    parts.into_iter().filter_map(rest).collect()
}

/// Returns the content in the form that the template expects.
pub(super) fn content(parts: Vec<TextPart>, role: &str, format: ContentFormat) -> Value {
    let all_text = parts.iter().all(|part| matches!(part, TextPart::Text(_)));
    // Tool results are one text for every template: few expect parts there.
    if format == ContentFormat::Parts && !(role == "tool" && all_text) {
        return parts
            .into_iter()
            .map(|part| match part {
                TextPart::Text(text) => json!({"type": "text", "text": text}),
                TextPart::ToolReference(name) => json!({"type": "tool_reference", "name": name}),
            })
            .collect();
    }
    let texts = parts.into_iter().map(|part| match part {
        TextPart::Text(text) | TextPart::ToolReference(text) => text,
    });
    let texts: Vec<String> = texts
        .filter(|text| format == ContentFormat::Parts || !text.is_empty())
        .collect();
    texts.join("\n").into()
}
