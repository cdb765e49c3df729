//! Converts messages into the form that the engine passes to the template.

use serde_json::{Map, Value};

use super::{
    content::{MessageRules, content, parts, without_billing_header},
    rejection::{refused, unsupported},
    tool_call::tool_calls,
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

/// Returns one message as the template sees it. `Err` also for one that changes others.
pub(super) fn alone(message: Value, template: &ChatTemplate) -> Result<Value, PromptError> {
    let Value::Object(message) = message else {
        return Err(refused("a message is no object: expected at least a role"));
    };
    let turn = turn(message, template.content_format())?;
    if is(&turn, "developer") && !template.knows_developer() {
        return Err(unsupported("a developer message beside others"));
    }
    Ok(Value::Object(turn))
}

fn is(turn: &Map<String, Value>, role: &str) -> bool {
    turn.get("role").is_some_and(|found| found == role)
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
