//! Converts messages into the form that the engine passes to the template.

use serde_json::{Map, Value, json};

use super::{
    number,
    rejection::{refused, unsupported},
};
use crate::{
    PromptError,
    template::{ChatTemplate, ContentFormat},
};

/// Returns the messages as the template sees them.
pub(super) fn conversation(
    messages: Vec<Value>,
    template: &ChatTemplate,
) -> Result<Vec<Value>, PromptError> {
    let mut conversation = messages
        .into_iter()
        .map(|message| match message {
            Value::Object(message) => turn(message, template.content_format()),
            _ => Err(refused("a message is no object: expected at least a role")),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if !template.knows_developer() && conversation.iter().any(|turn| is(turn, "developer")) {
        conversation = developers_as_system(conversation);
    }
    Ok(conversation.into_iter().map(Value::Object).collect())
}

fn is(turn: &Map<String, Value>, role: &str) -> bool {
    turn.get("role").is_some_and(|found| found == role)
}

/// The strictness of the engine's message validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageRules {
    /// The roles of its API.
    Known,
    /// Roles of some templates only.
    Custom,
}

impl MessageRules {
    fn of(role: &str) -> Self {
        match role {
            "system" | "developer" | "user" | "assistant" | "tool" => Self::Known,
            _ => Self::Custom,
        }
    }
}

/// Converts one message, with the fields that the engine keeps.
fn turn(
    mut message: Map<String, Value>,
    format: ContentFormat,
) -> Result<Map<String, Value>, PromptError> {
    let Some(Value::String(role)) = message.shift_remove("role") else {
        return Err(refused("a message has no role: expected a string"));
    };
    let mut turn = Map::new();
    turn.insert("role".into(), role.clone().into());
    let mut parts = parts(&role, message.shift_remove("content"))?;
    if role == "system" {
        parts = without_billing_header(parts);
    }
    turn.insert("content".into(), content(parts, &role, format));
    match role.as_str() {
        "assistant" => move_calls_and_reasoning(&mut message, &mut turn)?,
        "tool" => match message.shift_remove("tool_call_id") {
            None => {}
            Some(id @ (Value::String(_) | Value::Null)) => {
                turn.insert("tool_call_id".into(), id);
            }
            Some(_) => return Err(refused("a tool message's tool_call_id is no string")),
        },
        "developer" => {
            turn.insert(
                "tools".into(),
                message.shift_remove("tools").unwrap_or(Value::Null),
            );
        }
        _ => {}
    }
    match message.shift_remove("name") {
        None => {}
        Some(name @ Value::String(_)) => {
            turn.insert("name".into(), name);
        }
        Some(_) if role == "tool" => {}
        Some(_) => {
            return Err(refused(format!(
                "the name in a message of role {role:?} is no string"
            )));
        }
    }
    if MessageRules::of(&role) == MessageRules::Custom && role != "function" {
        check_custom(&message)?;
    }
    Ok(turn)
}

/// Moves the calls and the reasoning of an assistant's message to its turn.
fn move_calls_and_reasoning(
    message: &mut Map<String, Value>,
    turn: &mut Map<String, Value>,
) -> Result<(), PromptError> {
    let calls = tool_calls(message.shift_remove("tool_calls"))?;
    if !calls.is_empty() {
        turn.insert("tool_calls".into(), calls.into());
    }
    let reasoning = message
        .shift_remove("reasoning")
        .filter(|reasoning| !reasoning.is_null());
    let reasoning = reasoning.or_else(|| message.shift_remove("reasoning_content"));
    if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_null()) {
        turn.insert("reasoning".into(), reasoning.clone());
        turn.insert("reasoning_content".into(), reasoning);
    }
    Ok(())
}

/// Checks the form of fields in a message with a custom role; the values are not used here.
fn check_custom(message: &Map<String, Value>) -> Result<(), PromptError> {
    let wrong = |key: &str, fits: fn(&Value) -> bool| {
        message
            .get(key)
            .is_some_and(|value| !value.is_null() && !fits(value))
    };
    for key in ["reasoning", "task", "tool_call_id"] {
        if wrong(key, Value::is_string) {
            return Err(refused(format!("a message's {key} is no string")));
        }
    }
    for key in ["tools", "tool_calls"] {
        if wrong(key, Value::is_array) {
            return Err(refused(format!("a message's {key} is no list")));
        }
    }
    Ok(())
}

/// A content part that becomes text.
enum TextPart {
    Text(String),
    /// The name of a tool whose description the template looks up.
    ToolReference(String),
}

/// Returns the parts of a message's content; a text is one part.
fn parts(role: &str, content: Option<Value>) -> Result<Vec<TextPart>, PromptError> {
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
fn without_billing_header(parts: Vec<TextPart>) -> Vec<TextPart> {
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
fn content(parts: Vec<TextPart>, role: &str, format: ContentFormat) -> Value {
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

/// Returns tool calls with their arguments as objects: clients send them as JSON in a string.
fn tool_calls(calls: Option<Value>) -> Result<Vec<Value>, PromptError> {
    match calls {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(calls)) => calls.into_iter().map(tool_call).collect(),
        Some(Value::Object(none)) if none.is_empty() => Ok(Vec::new()),
        Some(Value::String(none)) if none.is_empty() => Ok(Vec::new()),
        Some(_) => Err(refused("tool_calls is no list")),
    }
}

fn tool_call(call: Value) -> Result<Value, PromptError> {
    let text = |object: &mut Map<String, Value>, key: &str| match object.shift_remove(key) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(refused(format!(
            "a tool call has no {key}: expected a string"
        ))),
    };
    let Value::Object(mut call) = call else {
        return Err(refused("a tool call is no object"));
    };
    let (id, kind) = (text(&mut call, "id")?, text(&mut call, "type")?);
    let (Some(Value::Object(mut function)), "function") =
        (call.shift_remove("function"), kind.as_str())
    else {
        return Err(refused(
            "a tool call has no function: expected an object, and type \"function\"",
        ));
    };
    let (name, arguments) = (
        text(&mut function, "name")?,
        text(&mut function, "arguments")?,
    );
    if let Some(number) = number::unlike_python(&arguments) {
        return Err(unsupported(format!("the number {number} in a tool call")));
    }
    // Arguments that are no object count as empty, so that one bad call does not end a
    // conversation.
    let arguments: Map<String, Value> = match serde_json::from_str(&arguments) {
        Ok(Value::Object(arguments)) => arguments,
        Ok(_) => Map::new(),
        // Texts that the engine's parser accepts and this one does not.
        Err(_) if arguments.contains("\\u") || arguments.len() > DEPTH_MATTERS => {
            return Err(unsupported(
                "a tool call whose arguments are not plain json",
            ));
        }
        Err(_) => Map::new(),
    };
    Ok(json!({"id": id, "function": {"arguments": arguments, "name": name}, "type": kind}))
}

/// Length below which a text cannot be nested deeper than both parsers allow.
const DEPTH_MATTERS: usize = 128;

/// Converts developer messages for a template without that role: they become system messages, and
/// several of those become one, which is the first message.
fn developers_as_system(mut conversation: Vec<Map<String, Value>>) -> Vec<Map<String, Value>> {
    for turn in conversation.iter_mut().filter(|turn| is(turn, "developer")) {
        turn.insert("role".into(), "system".into());
        turn.shift_remove("tools");
    }
    if !conversation.iter().skip(1).any(|turn| is(turn, "system")) {
        return conversation;
    }
    let (system, others): (Vec<_>, Vec<_>) = conversation
        .into_iter()
        .partition(|turn| is(turn, "system"));
    let texts: Vec<String> = system
        .iter()
        .filter_map(|turn| turn.get("content"))
        .map(as_text)
        .collect();
    let texts: Vec<&str> = texts
        .iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty())
        .collect();
    let mut merged = Map::new();
    merged.insert("role".into(), "system".into());
    merged.insert("content".into(), texts.join("\n\n").into());
    [vec![merged], others].concat()
}

fn as_text(content: &Value) -> String {
    match content {
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}
