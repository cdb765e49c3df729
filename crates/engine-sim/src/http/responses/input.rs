//! Converts a Responses request into a chat request.

use serde_json::{Value, json};

use super::super::{
    SimApiError,
    request::{self, GenerationBody},
};

/// Converts the input's items into chat messages.
pub(super) fn messages(input: &Value) -> Result<Vec<Value>, SimApiError> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) => items,
        _ => {
            return Err(refused(
                "input is missing or wrong: expected a text or a list of items.",
            ));
        }
    };
    let mut messages: Vec<Value> = Vec::new();
    for item in items {
        match item["type"].as_str().unwrap_or("message") {
            "message" => messages.push(message(item)?),
            "reasoning" => {}
            "function_call" => {
                let function = json!({"name": item["name"], "arguments": item["arguments"]});
                let call = json!({"id": item["call_id"], "type": "function", "function": function});
                // Parallel calls are one message of the chat.
                match messages.last_mut().and_then(|last| last["tool_calls"].as_array_mut()) {
                    Some(calls) => calls.push(call),
                    None => messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
                }
            }
            "function_call_output" => messages.push(json!({
                "role": "tool", "tool_call_id": item["call_id"], "content": content(&item["output"])?,
            })),
            other => {
                let known = "message, reasoning, function_call or function_call_output";
                return Err(refused(format!("input has an item of type {other:?}: expected {known}.")));
            }
        }
    }
    Ok(messages)
}

fn message(item: &Value) -> Result<Value, SimApiError> {
    let role = item["role"]
        .as_str()
        .ok_or_else(|| refused("A message of input has no role: expected a text."))?;
    Ok(json!({"role": role, "content": content(&item["content"])?}))
}

/// Converts text, or parts with text, into the form of chats.
fn content(content: &Value) -> Result<Value, SimApiError> {
    let Value::Array(parts) = content else {
        return Ok(content.clone());
    };
    let text = |part: &Value| match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") => {
            Ok(json!({"type": "text", "text": part["text"]}))
        }
        Some("refusal") => Ok(json!({"type": "text", "text": part["refusal"]})),
        other => Err(refused(format!(
            "input has a part of type {other:?}: this simulated engine reads texts only."
        ))),
    };
    parts
        .iter()
        .map(text)
        .collect::<Result<Vec<_>, _>>()
        .map(Value::Array)
}

/// Returns the chat request for `request`.
pub(super) fn chat(request: &Value, messages: &[Value]) -> Result<GenerationBody, SimApiError> {
    let mut whole = Vec::new();
    if let Some(instructions) = request["instructions"].as_str() {
        whole.push(json!({"role": "system", "content": instructions}));
    }
    whole.extend_from_slice(messages);
    let fields = [
        ("model", request["model"].clone()),
        ("messages", Value::Array(whole)),
        ("tools", request::tools(&request["tools"], tool)?),
        ("tool_choice", tool_choice(&request["tool_choice"])),
        ("response_format", format(&request["text"]["format"])),
        ("max_tokens", request["max_output_tokens"].clone()),
        ("reasoning_effort", request["reasoning"]["effort"].clone()),
    ];
    let same = [
        "stream",
        "parallel_tool_calls",
        "cache_salt",
        "priority",
        "chat_template_kwargs",
        "ignore_eos",
    ];
    request::chat(
        fields
            .into_iter()
            .chain(same.map(|name| (name, request[name].clone()))),
    )
}

fn tool(tool: &Value) -> Result<Value, SimApiError> {
    match tool["type"].as_str() {
        Some("function") => {
            let mut function = tool.clone();
            if let Some(function) = function.as_object_mut() {
                function.shift_remove("type");
            }
            Ok(json!({"type": "function", "function": function}))
        }
        other => Err(refused(format!(
            "tools has one of type {other:?}: this simulated engine has functions only."
        ))),
    }
}

fn tool_choice(choice: &Value) -> Value {
    match choice["name"].as_str() {
        Some(name) => json!({"type": "function", "function": {"name": name}}),
        None => choice.clone(),
    }
}

fn format(format: &Value) -> Value {
    match format["type"].as_str() {
        Some("json_schema") => {
            json!({"type": "json_schema", "json_schema": {"name": format["name"], "schema": format["schema"]}})
        }
        _ => format.clone(),
    }
}

fn refused(message: impl Into<String>) -> SimApiError {
    SimApiError::bad_request(message, "input")
}
