//! Tool calls in a conversation.

use serde_json::{Map, Value, json};

use super::{
    number,
    rejection::{refused, unsupported},
};
use crate::PromptError;

/// Returns tool calls with their arguments as objects: clients send them as JSON in a string.
pub(super) fn tool_calls(calls: Option<Value>) -> Result<Vec<Value>, PromptError> {
    match calls {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(calls)) => calls.into_iter().map(tool_call).collect(),
        Some(Value::Object(none)) if none.is_empty() => Ok(Vec::new()),
        Some(Value::String(none)) if none.is_empty() => Ok(Vec::new()),
        Some(_) => Err(refused("tool_calls is no list")),
    }
}

fn tool_call(call: Value) -> Result<Value, PromptError> {
    let text = |object: &mut Map<String, Value>, key: &str| match object.shift_remove(key) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(refused(format!(
            "a tool call has no {key}: expected a string"
        ))),
    };
    let Value::Object(mut call) = call else {
        return Err(refused("a tool call is no object"));
    };
    let (id, kind) = (text(&mut call, "id")?, text(&mut call, "type")?);
    let (Some(Value::Object(mut function)), "function") =
        (call.shift_remove("function"), kind.as_str())
    else {
        return Err(refused(
            "a tool call has no function: expected an object, and type \"function\"",
        ));
    };
    let (name, arguments) = (
        text(&mut function, "name")?,
        text(&mut function, "arguments")?,
    );
    if let Some(number) = number::unlike_python(&arguments) {
        return Err(unsupported(format!("the number {number} in a tool call")));
    }
    // Arguments that are no object count as empty, so that one bad call does not end a
    // conversation.
    let arguments: Map<String, Value> = match serde_json::from_str(&arguments) {
        Ok(Value::Object(arguments)) => arguments,
        Ok(_) => Map::new(),
        // Texts that the engine's parser accepts and this one does not.
        Err(_) if arguments.contains("\\u") || arguments.len() > DEPTH_MATTERS => {
            return Err(unsupported(
                "a tool call whose arguments are not plain json",
            ));
        }
        Err(_) => Map::new(),
    };
    Ok(json!({"id": id, "function": {"arguments": arguments, "name": name}, "type": kind}))
}

/// Length below which a text cannot be nested deeper than both parsers allow.
const DEPTH_MATTERS: usize = 128;
