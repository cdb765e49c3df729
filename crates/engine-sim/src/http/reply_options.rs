//! The reply options of a request: tools, form, reasoning, end.

mod form;
mod tools;

use serde_json::Value;

use crate::script::ReplyOptions;

use super::{SimApiError, chat_api::ChatApi, request::GenerationBody};

/// Maximum number of stop strings; more are rejected.
const MOST_STOPS: usize = 64;

/// Reads the options from a body in the chat's or the completions' form.
pub(crate) fn parse(body: &GenerationBody, dialect: ChatApi) -> Result<ReplyOptions, SimApiError> {
    let (stop, keep_stop) = (
        stops(body)?,
        body.include_stop_str_in_output.unwrap_or(false),
    );
    let form = form::form(body)?;
    if dialect.has_plain_prompts() {
        return Ok(ReplyOptions {
            form,
            stop,
            keep_stop,
            ..ReplyOptions::default()
        });
    }
    Ok(ReplyOptions {
        calls: tools::calls(body)?,
        form,
        thinking: thinks(body),
        stop,
        keep_stop,
    })
}

fn stops(body: &GenerationBody) -> Result<Vec<String>, SimApiError> {
    let refused = || {
        SimApiError::bad_request(
            format!(
                "stop is wrong: expected a text, or a list of at most {MOST_STOPS} texts, none of them empty."
            ),
            "stop",
        )
    };
    let stops: Vec<String> = match &body.stop {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) if stops.len() <= MOST_STOPS => stops
            .iter()
            .map(|stop| stop.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(refused)?,
        Some(_) => return Err(refused()),
    };
    if stops.iter().any(String::is_empty) {
        Err(refused())
    } else {
        Ok(stops)
    }
}

/// Returns whether the reply has reasoning, as in models with a switch for it: set in the
/// template's arguments, or by an effort.
fn thinks(body: &GenerationBody) -> bool {
    let kwargs = body
        .chat_template_kwargs
        .as_ref()
        .and_then(|kwargs| serde_json::from_str(kwargs.get()).ok());
    let switch = kwargs
        .as_ref()
        .and_then(|kwargs: &Value| kwargs.get("enable_thinking"))
        .and_then(Value::as_bool);
    let effort = body.reasoning_effort.as_ref().map(|effort| effort.get());
    switch.unwrap_or_else(|| effort.is_some_and(|effort| effort != "null" && effort != "\"none\""))
}
