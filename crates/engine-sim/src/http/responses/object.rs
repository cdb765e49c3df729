//! The response object.

use serde_json::{Value, json};

use super::ResponseContext;
use crate::http::reply::Usage;

/// The members of a response that do not repeat its request.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) id: String,
    pub(crate) created: i64,
    pub(crate) model: String,
}

/// The end of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseEnd {
    pub(super) usage: Usage,
    /// Whether the token limit ended it.
    pub(super) cut: bool,
}

/// Returns a response with this output; `end` once it has ended.
pub(super) fn response(
    head: &ResponseHead,
    frame: &ResponseContext,
    output: &[Value],
    end: Option<ResponseEnd>,
) -> Value {
    let asked = |field: &str, default: Value| match frame.asked.get(field) {
        None | Some(Value::Null) => default,
        Some(value) => value.clone(),
    };
    let (status, incomplete) = match end {
        None => ("in_progress", Value::Null),
        Some(end) if end.cut => ("incomplete", json!({"reason": "max_output_tokens"})),
        Some(_) => ("completed", Value::Null),
    };
    json!({
        "id": format!("resp_{}", head.id),
        "object": "response",
        "created_at": head.created,
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": incomplete,
        "instructions": asked("instructions", Value::Null),
        "max_output_tokens": asked("max_output_tokens", Value::Null),
        "metadata": asked("metadata", json!({})),
        "model": head.model,
        "output": output,
        "parallel_tool_calls": asked("parallel_tool_calls", json!(true)),
        "previous_response_id": asked("previous_response_id", Value::Null),
        "reasoning": asked("reasoning", json!({"effort": null, "summary": null})),
        "service_tier": "auto",
        "store": frame.store,
        "temperature": asked("temperature", json!(1.0)),
        "text": asked("text", json!({"format": {"type": "text"}})),
        "tool_choice": asked("tool_choice", json!("auto")),
        "tools": asked("tools", json!([])),
        "top_logprobs": asked("top_logprobs", json!(0)),
        "top_p": asked("top_p", json!(1.0)),
        "truncation": asked("truncation", json!("disabled")),
        "usage": end.map(|end| counts(end.usage)),
        "user": asked("user", Value::Null),
    })
}

fn counts(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}
