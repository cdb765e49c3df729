//! Converts a request in Anthropic's form into a chat request.

use serde_json::{Value, json};

use super::super::{
    SimApiError,
    request::{self, GenerationBody},
};

/// Whether a request must have a length limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LengthRequirement {
    Needed,
    Unneeded,
}

/// Reads a request and converts it into a chat's.
pub(crate) fn read(body: &[u8], limit: LengthRequirement) -> Result<GenerationBody, SimApiError> {
    let request: Value = request::parse(body)?;
    if limit == LengthRequirement::Needed && !request["max_tokens"].is_u64() {
        return Err(refused(
            "max_tokens is missing or wrong: expected a whole number.",
            "max_tokens",
        ));
    }
    let messages = conversation(&request)?;
    let alone = request["tool_choice"]["disable_parallel_tool_use"] == true;
    let thinks = matches!(
        request["thinking"]["type"].as_str(),
        Some("enabled" | "adaptive")
    );
    request::chat([
        ("model", request["model"].clone()),
        ("messages", Value::Array(messages)),
        ("max_tokens", request["max_tokens"].clone()),
        ("stream", request["stream"].clone()),
        ("stop", request["stop_sequences"].clone()),
        ("tools", request::tools(&request["tools"], tool)?),
        ("tool_choice", tool_choice(&request["tool_choice"])),
        ("response_format", format(&request)),
        ("cache_salt", request["cache_salt"].clone()),
        ("priority", request["priority"].clone()),
        ("ignore_eos", request["ignore_eos"].clone()),
        (
            "parallel_tool_calls",
            if alone { false.into() } else { Value::Null },
        ),
        (
            "chat_template_kwargs",
            if thinks {
                json!({"enable_thinking": true})
            } else {
                Value::Null
            },
        ),
    ])
}

/// Returns the system prompt and the turns as a chat's messages.
fn conversation(request: &Value) -> Result<Vec<Value>, SimApiError> {
    let mut messages = Vec::new();
    let system = texts(&request["system"], "system")?.concat();
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    let turns = request["messages"]
        .as_array()
        .filter(|turns| !turns.is_empty());
    for turn in turns.ok_or_else(|| {
        refused(
            "messages is missing or empty: expected at least one.",
            "messages",
        )
    })? {
        match turn["role"].as_str() {
            Some("user") => user(&turn["content"], &mut messages)?,
            Some("assistant") => messages.push(assistant(&turn["content"])?),
            other => {
                let message = format!("A message's role is {other:?}: expected user or assistant.");
                return Err(refused(message, "messages"));
            }
        }
    }
    Ok(messages)
}

/// Returns a text, or the texts of blocks that contain nothing else.
fn texts(content: &Value, field: &'static str) -> Result<Vec<String>, SimApiError> {
    match content {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(blocks) => {
            let text = |block: &Value| {
                block["text"]
                    .as_str()
                    .filter(|_| block["type"] == "text")
                    .map(str::to_owned)
            };
            let texts = blocks.iter().map(text).collect::<Option<_>>();
            texts.ok_or_else(|| refused(format!("{field} has a block that is no text."), field))
        }
        _ => Err(refused(
            format!("{field} is wrong: expected a text or blocks."),
            field,
        )),
    }
}

/// Adds a user's turn: tool results are messages of their own, before the other content.
fn user(content: &Value, messages: &mut Vec<Value>) -> Result<(), SimApiError> {
    let Value::Array(blocks) = content else {
        messages.push(json!({"role": "user", "content": content}));
        return Ok(());
    };
    let mut parts = Vec::new();
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => parts.push(json!({"type": "text", "text": block["text"]})),
            Some("tool_result") => messages.push(json!({
                "role": "tool", "tool_call_id": block["tool_use_id"],
                "content": texts(&block["content"], "messages")?.concat(),
            })),
            other => return Err(unknown_block(other)),
        }
    }
    if !parts.is_empty() {
        messages.push(json!({"role": "user", "content": one_text(parts)}));
    }
    Ok(())
}

fn assistant(content: &Value) -> Result<Value, SimApiError> {
    let Value::Array(blocks) = content else {
        return Ok(json!({"role": "assistant", "content": content}));
    };
    let (mut parts, mut calls, mut thinking) = (Vec::new(), Vec::new(), String::new());
    for block in blocks {
        match block["type"].as_str() {
            Some("text") => parts.push(json!({"type": "text", "text": block["text"]})),
            Some("thinking") => thinking.push_str(block["thinking"].as_str().unwrap_or_default()),
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let function =
                    json!({"name": block["name"], "arguments": block["input"].to_string()});
                calls.push(json!({"id": block["id"], "type": "function", "function": function}));
            }
            other => return Err(unknown_block(other)),
        }
    }
    let mut message = json!({"role": "assistant", "content": one_text(parts)});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    if !thinking.is_empty() {
        message["reasoning"] = thinking.into();
    }
    Ok(message)
}

/// Returns a single part as its text, which any template accepts; an empty list as an empty value.
fn one_text(mut parts: Vec<Value>) -> Value {
    match parts.as_mut_slice() {
        [] => Value::Null,
        [only] => only["text"].take(),
        _ => parts.into(),
    }
}

fn tool(tool: &Value) -> Result<Value, SimApiError> {
    match tool["type"].as_str() {
        None | Some("custom") => {
            let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
            if tool["description"].is_string() {
                function["description"] = tool["description"].clone();
            }
            Ok(json!({"type": "function", "function": function}))
        }
        Some(other) => Err(refused(
            format!(
                "tools has one of type {other:?}: this simulated engine has custom tools only."
            ),
            "tools",
        )),
    }
}

fn tool_choice(choice: &Value) -> Value {
    match choice["type"].as_str() {
        Some("any") => "required".into(),
        Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
        Some(word) => word.into(),
        None => Value::Null,
    }
}

fn format(request: &Value) -> Value {
    let format = [
        &request["output_config"]["format"],
        &request["output_format"],
    ]
    .into_iter()
    .find(|one| one.is_object());
    format.map_or(
        Value::Null,
        |format| json!({"type": "json_schema", "json_schema": {"name": "reply", "schema": format["schema"]}}),
    )
}

fn unknown_block(kind: Option<&str>) -> SimApiError {
    refused(
        format!(
            "A message has a block of type {kind:?}: this simulated engine reads texts and tools."
        ),
        "messages",
    )
}

fn refused(message: impl Into<String>, field: &'static str) -> SimApiError {
    SimApiError::bad_request(message, field)
}
