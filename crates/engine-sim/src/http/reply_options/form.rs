//! Reads the required form of a reply's text.

use serde_json::{Value, json};

use crate::script::ReplyForm;

use super::super::{SimApiError, request::GenerationBody};

/// Returns the form that any of its fields requires.
pub(super) fn form(body: &GenerationBody) -> Result<Option<ReplyForm>, SimApiError> {
    let given = |field: &Option<Value>| field.clone().filter(|value| !value.is_null());
    if let Some(format) = given(&body.response_format) {
        return response_format(&format);
    }
    if let Some(outputs) = given(&body.structured_outputs) {
        return structured(&outputs);
    }
    if let Some(schema) = given(&body.guided_json) {
        return Ok(Some(ReplyForm::Schema(schema_of(&schema, "guided_json")?)));
    }
    given(&body.guided_choice)
        .map(|choices| choice(&choices, "guided_choice"))
        .transpose()
}

fn response_format(format: &Value) -> Result<Option<ReplyForm>, SimApiError> {
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(any_object())),
        Some("json_schema") => {
            let schema = format["json_schema"]
                .get("schema")
                .or_else(|| format["json_schema"].get("json_schema"));
            let missing = || {
                refused(
                    "response_format has no json_schema.schema: expected a schema.",
                    "response_format",
                )
            };
            Ok(Some(ReplyForm::Schema(schema_of(
                schema.ok_or_else(missing)?,
                "response_format",
            )?)))
        }
        _ => Err(refused(
            format!(
                "response_format.type is {}: expected text, json_object or json_schema.",
                format["type"]
            ),
            "response_format",
        )),
    }
}

fn structured(outputs: &Value) -> Result<Option<ReplyForm>, SimApiError> {
    const FIELD: &str = "structured_outputs";
    let given = |key: &str| outputs.get(key).filter(|value| !value.is_null());
    if let Some(schema) = given("json") {
        Ok(Some(ReplyForm::Schema(schema_of(schema, FIELD)?)))
    } else if let Some(choices) = given("choice") {
        choice(choices, FIELD).map(Some)
    } else if given("json_object") == Some(&Value::Bool(true)) {
        Ok(Some(any_object()))
    } else if given("regex")
        .or_else(|| given("grammar"))
        .or_else(|| given("structural_tag"))
        .is_some()
    {
        Err(refused(
            "This simulated engine knows no regular expressions and grammars: send json or choice.",
            FIELD,
        ))
    } else {
        Ok(None)
    }
}

/// Returns a form for requests that accept any object: one with a member.
fn any_object() -> ReplyForm {
    ReplyForm::Schema(json!({"type": "object", "required": ["answer"]}))
}

/// Returns a schema, given as an object or as text.
fn schema_of(given: &Value, field: &'static str) -> Result<Value, SimApiError> {
    let schema = match given {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        other => other.clone(),
    };
    if schema.is_object() {
        Ok(schema)
    } else {
        Err(refused(
            format!("{field} holds no JSON schema: expected an object."),
            field,
        ))
    }
}

fn choice(given: &Value, field: &'static str) -> Result<ReplyForm, SimApiError> {
    let texts = given
        .as_array()
        .into_iter()
        .flatten()
        .map(|text| text.as_str().map(str::to_owned));
    match texts.collect::<Option<Vec<_>>>() {
        Some(texts) if !texts.is_empty() => Ok(ReplyForm::Choice(texts)),
        _ => Err(refused(
            format!("The choices of {field} are wrong: expected a list of texts."),
            field,
        )),
    }
}

fn refused(message: impl Into<String>, field: &'static str) -> SimApiError {
    SimApiError::bad_request(message, field)
}
