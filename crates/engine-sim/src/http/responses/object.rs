//! The response object.

use serde_json::{Value, json};

use super::ResponseContext;
use crate::http::reply::Usage;

/// The members of a response that do not repeat its request.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) id: String,
    pub(super) created: i64,
    pub(super) model: String,
}

/// Returns a response with this output; `usage` once it has ended, `cut` if the token limit ended
/// it.
pub(super) fn response(
    head: &ResponseHead,
    frame: &ResponseContext,
    output: &[Value],
    usage: Option<Usage>,
    cut: bool,
) -> Value {
    let asked = |field: &str, default: Value| match frame.asked.get(field) {
        None | Some(Value::Null) => default,
        Some(value) => value.clone(),
    };
    let status = match (usage, cut) {
        (None, _) => "in_progress",
        (Some(_), true) => "incomplete",
        (Some(_), false) => "completed",
    };
    json!({
        "id": format!("resp_{}", head.id),
        "object": "response",
        "created_at": head.created,
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": if cut { json!({"reason": "max_output_tokens"}) } else { Value::Null },
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
        "usage": usage.map(counts),
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
