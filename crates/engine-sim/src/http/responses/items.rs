//! Output items of a response.

use serde_json::{Value, json};

use crate::script::ToolCall;

/// The status of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemStatus {
    InProgress,
    Completed,
    /// The token limit cut it off.
    Incomplete,
}

impl ItemStatus {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

/// Returns a part of a message's text.
pub(super) fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Returns a message with these parts.
pub(super) fn message(id: &str, parts: Value, status: ItemStatus) -> Value {
    let mut item = json!({"id": format!("msg_{id}"), "type": "message", "status": status.word(), "role": "assistant"});
    item["content"] = parts;
    item
}

/// Returns a reasoning item.
pub(super) fn reasoning(id: &str, text: Option<&str>, status: ItemStatus) -> Value {
    let content = text.map_or(
        json!([]),
        |text| json!([{"type": "reasoning_text", "text": text}]),
    );
    json!({
        "id": format!("rs_{id}"), "type": "reasoning", "summary": [], "content": content, "encrypted_content": null,
        "status": status.word(),
    })
}

/// Returns a function call.
pub(super) fn function_call(call: &ToolCall, arguments: &str, status: ItemStatus) -> Value {
    json!({
        "id": format!("fc_{}", call.id), "type": "function_call", "status": status.word(),
        "call_id": format!("call_{}", call.id), "name": call.name, "arguments": arguments,
    })
}
