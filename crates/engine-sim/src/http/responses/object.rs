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
    let echo = |field: &str, default: Value| match frame.request.get(field) {
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
        "instructions": echo("instructions", Value::Null),
        "max_output_tokens": echo("max_output_tokens", Value::Null),
        "metadata": echo("metadata", json!({})),
        "model": head.model,
        "output": output,
        "parallel_tool_calls": echo("parallel_tool_calls", json!(true)),
        "previous_response_id": echo("previous_response_id", Value::Null),
        "reasoning": echo("reasoning", json!({"effort": null, "summary": null})),
        "service_tier": "auto",
        "store": frame.store,
        "temperature": echo("temperature", json!(1.0)),
        "text": echo("text", json!({"format": {"type": "text"}})),
        "tool_choice": echo("tool_choice", json!("auto")),
        "tools": echo("tools", json!([])),
        "top_logprobs": echo("top_logprobs", json!(0)),
        "top_p": echo("top_p", json!(1.0)),
        "truncation": echo("truncation", json!("disabled")),
        "usage": end.map(|end| counts(end.usage)),
        "user": echo("user", Value::Null),
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
