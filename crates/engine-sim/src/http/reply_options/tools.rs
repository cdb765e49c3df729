//! Selects the tools that a reply calls.

use serde_json::{Value, json};

use super::super::{SimApiError, request::GenerationBody};

/// Maximum number of calls in one reply.
const MOST_CALLS: usize = 32;

/// Returns the calls of the reply, as names and schemas: the tools that the last message names if
/// it is a user's, or a required one.
pub(super) fn calls(body: &GenerationBody) -> Result<Vec<(String, Value)>, SimApiError> {
    let tools: Vec<Value> = body
        .tools
        .as_ref()
        .and_then(|tools| serde_json::from_str(tools.get()).ok())
        .unwrap_or_default();
    let tools: Vec<(String, Value)> = tools.iter().filter_map(declared).collect();
    let choice = body.tool_choice.as_ref().filter(|choice| !choice.is_null());
    let demanded = match choice {
        None => false,
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(Vec::new()),
            "auto" => false,
            "required" => true,
            other => {
                return Err(refused(format!(
                    "tool_choice is {other:?}: expected none, auto, required or a tool."
                )));
            }
        },
        Some(named) => match named["function"]["name"].as_str() {
            Some(name) => {
                let tool = tools.into_iter().find(|(tool, _)| tool == name);
                let unknown = || {
                    refused(format!(
                        "tool_choice names {name:?}: expected one of the tools."
                    ))
                };
                return Ok(vec![tool.ok_or_else(unknown)?]);
            }
            None => false,
        },
    };
    let Some(first) = tools.first().cloned() else {
        return if demanded {
            Err(refused(
                "tool_choice is \"required\": expected tools beside it.",
            ))
        } else {
            Ok(Vec::new())
        };
    };
    let last_message = last_words(body);
    let named = tools
        .into_iter()
        .filter(|(name, _)| last_message.contains(name.as_str()));
    let most = if body.parallel_tool_calls == Some(false) {
        1
    } else {
        MOST_CALLS
    };
    let named: Vec<_> = named.take(most).collect();
    Ok(if named.is_empty() && demanded {
        vec![first]
    } else {
        named
    })
}

/// Returns name and schema of a tool; the template detects mistakes other than a missing name.
fn declared(tool: &Value) -> Option<(String, Value)> {
    let function = tool.get("function")?;
    let schema = function
        .get("parameters")
        .filter(|schema| schema.is_object());
    let name = function
        .get("name")?
        .as_str()
        .filter(|name| !name.is_empty())?;
    Some((
        name.to_owned(),
        schema.cloned().unwrap_or_else(|| json!({"type": "object"})),
    ))
}

/// Returns the last user message; empty if the last message is not the user's.
fn last_words(body: &GenerationBody) -> String {
    let messages: Vec<Value> = body
        .messages
        .as_ref()
        .and_then(|messages| serde_json::from_str(messages.get()).ok())
        .unwrap_or_default();
    let Some(last) = messages.last().filter(|last| last["role"] == "user") else {
        return String::new();
    };
    match &last["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}

fn refused(message: impl Into<String>) -> SimApiError {
    SimApiError::bad_request(message, "tool_choice")
}
