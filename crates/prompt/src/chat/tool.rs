//! Converts a tool into the form that the engine passes to the template: the engine's own fields
//! with their defaults, in its order.

use serde_json::{Map, Value};

use super::rejection::refused;
use crate::PromptError;

/// Keeps the fields that the engine knows and adds its defaults. Other fields are dropped, as in
/// the engine.
pub(super) fn filled(tool: Value) -> Result<Value, PromptError> {
    let Value::Object(mut given) = tool else {
        return Err(refused("a tool is no object: expected type and function"));
    };
    if given.get("type").is_some_and(|kind| kind != "function") {
        return Err(refused(
            "a tool's type is not \"function\": there is no other",
        ));
    }
    let Some(Value::Object(mut function)) = given.shift_remove("function") else {
        return Err(refused(
            "a tool has no function: expected an object with at least a name",
        ));
    };
    let deferred = flag(&given, "defer_loading")?;
    let mut shown = Map::new();
    match function.shift_remove("name") {
        Some(name @ Value::String(_)) => shown.insert("name".into(), name),
        _ => return Err(refused("a tool's function has no name: expected a string")),
    };
    for (key, is_kind, kind) in [
        (
            "description",
            Value::is_string as fn(&Value) -> bool,
            "a string",
        ),
        ("parameters", Value::is_object, "an object"),
    ] {
        let value = function.shift_remove(key).unwrap_or(Value::Null);
        if !value.is_null() && !is_kind(&value) {
            return Err(refused(format!(
                "a function's {key} is neither {kind} nor null"
            )));
        }
        shown.insert(key.into(), value);
    }
    let strict = flag(&function, "strict")?.map(|strict| ("strict", strict));
    let own = flag(&function, "defer_loading")?
        .or(deferred)
        .map(|deferred| ("defer_loading", deferred));
    shown.extend(
        [strict, own]
            .into_iter()
            .flatten()
            .map(|(key, flag)| (key.to_owned(), flag.into())),
    );

    let mut tool = Map::new();
    tool.insert("type".into(), "function".into());
    tool.insert("function".into(), shown.into());
    if let Some(deferred) = deferred {
        tool.insert("defer_loading".into(), deferred.into());
    }
    Ok(tool.into())
}

/// Reads a flag as the engine does: `true`, `1`, and words for it.
fn flag(object: &Map<String, Value>, key: &str) -> Result<Option<bool>, PromptError> {
    let value = match object.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Bool(flag)) => Some(*flag),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(1.0) => Some(true),
            Some(0.0) => Some(false),
            _ => None,
        },
        Some(Value::String(word)) => match word.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
            _ => None,
        },
        Some(_) => None,
    };
    value
        .map(Some)
        .ok_or_else(|| refused(format!("a tool's {key} is no flag: expected true or false")))
}
