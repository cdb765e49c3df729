//! A chat request as its template sees it.
//!
//! Engines do not hand messages to the template as they came: fields are dropped, renamed, filled in and parsed first.
//! This module does what vLLM does; the facts are held by the ids recorded from it (`tests/engine_tokens.rs`). What only
//! the engine can know (images, a template of the client's own) is an error, never a guess.

use serde_json::{Map, Value};

use crate::{
    PromptError,
    template::{ChatTemplate, ChatTemplates, ContentFormat},
};

/// A chat request: JSON texts of its fields, and its flags with the defaults that the engine gives them.
#[derive(Clone, Copy, Debug)]
pub struct ChatRequest<'a> {
    /// A list of messages.
    pub messages: &'a str,
    /// A list of tools.
    pub tools: Option<&'a str>,
    /// A list of documents.
    pub documents: Option<&'a str>,
    /// A template of the client's own. Engines refuse it unless they were told to trust clients.
    pub chat_template: Option<&'a str>,
    /// An object of variables for the template.
    pub chat_template_kwargs: Option<&'a str>,
    /// How much the model shall reason: a word.
    pub reasoning_effort: Option<&'a str>,
    /// Ends with the lead-in of the reply. Engines default to true.
    pub add_generation_prompt: bool,
    /// Leaves the last message open.
    pub continue_final_message: bool,
    /// Adds the tokenizer's special tokens to those the template writes. Engines default to false.
    pub add_special_tokens: bool,
}

/// Marks the place behind the open message's text, then is cut off with all that follows. The space at its end tells
/// whether the template trims what it prints. Private-use letters, so that no template treats it specially.
const OPEN_END: &str = "\u{f8ff}open\u{f8ff} ";

/// Names that the engine fills in itself: a client's value for one of them does something else than being a variable.
const OWN_VARIABLES: [&str; 7] =
    ["messages", "conversation", "tools", "documents", "chat_template", "tokenize", "return_dict"];

/// Renders the request.
pub(crate) fn render(
    templates: &ChatTemplates,
    chat: &ChatRequest<'_>,
    now_unix_s: i64,
) -> Result<String, PromptError> {
    if chat.chat_template.is_some() {
        return Err(unsupported("a template of the client's own"));
    }
    if chat.continue_final_message && chat.add_generation_prompt {
        return Err(PromptError::Template(
            "continue_final_message and add_generation_prompt exclude each other".into(),
        ));
    }
    let tools = chat.tools.map(|tools| json::<Vec<Value>>("tools", tools)).transpose()?;
    let tools = tools.map(|tools| tools.into_iter().map(tool).collect::<Result<Vec<_>, _>>()).transpose()?;
    let template = templates.pick(tools.is_some());
    let messages = json::<Vec<Value>>("messages", chat.messages)?;
    let mut conversation = conversation(messages, template)?;
    if chat.continue_final_message {
        open_last(&mut conversation)?;
    }

    let mut variables = Map::new();
    for (name, value) in chat
        .chat_template_kwargs
        .map(|kwargs| json::<Map<_, _>>("chat_template_kwargs", kwargs))
        .transpose()?
        .into_iter()
        .flatten()
    {
        if OWN_VARIABLES.contains(&name.as_str()) {
            return Err(unsupported(format!("{name} in chat_template_kwargs")));
        }
        variables.insert(name, value);
    }
    if let Some(effort) = reasoning_effort(chat)? {
        // What the client says of thinking itself wins. Engines from before May 2026 pass on the effort only.
        variables.entry("enable_thinking").or_insert((effort != "none").into());
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let documents = chat.documents.map(|documents| json("documents", documents)).transpose()?;
    variables.insert("documents".into(), documents.unwrap_or(Value::Null));
    variables.insert("tools".into(), tools.map_or(Value::Null, Value::Array));
    variables.insert("messages".into(), Value::Array(conversation));
    variables.insert("add_generation_prompt".into(), chat.add_generation_prompt.into());
    let size = chat.messages.len() + chat.tools.map_or(0, str::len) + chat.documents.map_or(0, str::len);
    let text = template.render(variables, size, now_unix_s)?;
    if chat.continue_final_message { cut_open_end(text) } else { Ok(text) }
}

fn json<T: serde::de::DeserializeOwned>(field: &'static str, text: &str) -> Result<T, PromptError> {
    serde_json::from_str(text).map_err(|error| PromptError::Json { field, reason: error.to_string() })
}

fn reasoning_effort(chat: &ChatRequest<'_>) -> Result<Option<String>, PromptError> {
    Ok(chat.reasoning_effort.map(|effort| json::<Option<String>>("reasoning_effort", effort)).transpose()?.flatten())
}

fn unsupported(what: impl Into<String>) -> PromptError {
    PromptError::Unsupported { what: what.into() }
}

/// A tool with the fields that the engine fills in, in its order.
fn tool(tool: Value) -> Result<Value, PromptError> {
    let filled = (|| {
        let Value::Object(mut given) = tool else { return None };
        let Value::Object(mut function) = given.shift_remove("function")? else { return None };
        let mut filled = Map::new();
        for key in ["name", "description", "parameters"] {
            filled.insert(key.into(), function.shift_remove(key).unwrap_or(Value::Null));
        }
        filled.extend(function);
        let mut tool = Map::new();
        tool.insert("type".into(), given.shift_remove("type").unwrap_or_else(|| "function".into()));
        tool.insert("function".into(), filled.into());
        tool.extend(given);
        Some(Value::Object(tool))
    })();
    filled.ok_or_else(|| unsupported("a tool without a function"))
}

fn conversation(messages: Vec<Value>, template: &ChatTemplate) -> Result<Vec<Value>, PromptError> {
    let mut conversation = messages
        .into_iter()
        .map(|message| match message {
            Value::Object(message) => turn(message, template.content_format()),
            _ => Err(unsupported("a message that is not an object")),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if !template.knows_developer() {
        developer_to_system(&mut conversation)?;
    }
    Ok(conversation.into_iter().map(Value::Object).collect())
}

/// One message with the fields that the engine keeps.
fn turn(mut message: Map<String, Value>, format: ContentFormat) -> Result<Map<String, Value>, PromptError> {
    let Some(Value::String(role)) = message.shift_remove("role") else {
        return Err(unsupported("a message without a role"));
    };
    let mut turn = Map::new();
    turn.insert("role".into(), role.clone().into());
    let texts = texts(message.shift_remove("content"))?;
    // Tool results are one text for every template: few expect parts there.
    let content = if format == ContentFormat::Parts && role != "tool" {
        Value::Array(texts.into_iter().map(|text| serde_json::json!({"type": "text", "text": text})).collect())
    } else {
        Value::String(texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n"))
    };
    turn.insert("content".into(), content);
    match role.as_str() {
        "assistant" => {
            match message.shift_remove("tool_calls") {
                None | Some(Value::Null) => {}
                Some(Value::Array(calls)) if calls.is_empty() => {}
                Some(Value::Array(calls)) => {
                    let calls = calls.into_iter().map(tool_call).collect::<Result<Vec<_>, _>>()?;
                    turn.insert("tool_calls".into(), calls.into());
                }
                Some(_) => return Err(unsupported("tool_calls that are not a list")),
            }
            let reasoning = message.shift_remove("reasoning").filter(|reasoning| !reasoning.is_null());
            let reasoning = reasoning.or_else(|| message.shift_remove("reasoning_content"));
            if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_null()) {
                turn.insert("reasoning".into(), reasoning.clone());
                turn.insert("reasoning_content".into(), reasoning);
            }
        }
        "tool" => {
            if let Some(id) = message.shift_remove("tool_call_id") {
                turn.insert("tool_call_id".into(), id);
            }
        }
        "developer" => {
            turn.insert("tools".into(), message.shift_remove("tools").unwrap_or(Value::Null));
        }
        _ => {}
    }
    if let Some(name @ Value::String(_)) = message.shift_remove("name") {
        turn.insert("name".into(), name);
    }
    Ok(turn)
}

/// The texts of a message's content.
fn texts(content: Option<Value>) -> Result<Vec<String>, PromptError> {
    match content {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(parts)) => parts.into_iter().filter_map(|part| text(part).transpose()).collect(),
        Some(_) => Err(unsupported("content that is neither a text nor a list")),
    }
}

/// The text of a content part; `None` for a text that is null.
fn text(part: Value) -> Result<Option<String>, PromptError> {
    let mut part = match part {
        Value::String(text) => return Ok(Some(text)),
        Value::Object(part) => part,
        _ => return Err(unsupported("a content part that is no object")),
    };
    let key = match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        other => return Err(unsupported(format!("a content part of type {}", other.unwrap_or("unknown")))),
    };
    match part.shift_remove(key) {
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Null) | None => Ok(None),
        Some(_) => Err(unsupported("a text part whose text is no string")),
    }
}

/// A tool call with its arguments as an object: clients send them as JSON in a string.
fn tool_call(call: Value) -> Result<Value, PromptError> {
    let Value::Object(mut call) = call else { return Err(unsupported("a tool call that is no object")) };
    let Some(Value::Object(function)) = call.get_mut("function") else {
        return Err(unsupported("a tool call without a function"));
    };
    let arguments = match function.get_mut("arguments").map(Value::take) {
        Some(Value::Object(arguments)) => arguments,
        // What is not an object counts as none, so that one bad call does not end a conversation.
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or_default(),
        _ => Map::new(),
    };
    function.insert("arguments".into(), arguments.into());
    Ok(Value::Object(call))
}

/// Gives developer messages to a template that does not know the role.
fn developer_to_system(conversation: &mut [Map<String, Value>]) -> Result<(), PromptError> {
    let is = |message: &Map<String, Value>, role: &str| message.get("role").is_some_and(|found| found == role);
    if !conversation.iter().any(|message| is(message, "developer")) {
        return Ok(());
    }
    // How an engine merges several instructions, or moves a late one, differs between its versions.
    let instructions = conversation.iter().filter(|message| is(message, "developer") || is(message, "system")).count();
    match conversation.first_mut() {
        Some(first) if instructions == 1 && is(first, "developer") => {
            first.insert("role".into(), "system".into());
            first.shift_remove("tools");
            Ok(())
        }
        _ => Err(unsupported("a developer message beside a system message or after other messages")),
    }
}

fn open_last(conversation: &mut [Value]) -> Result<(), PromptError> {
    let content = conversation.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.last_mut().and_then(|part| part.get_mut("text")),
        other => other,
    };
    match text {
        Some(Value::String(text)) => {
            text.push_str(OPEN_END);
            Ok(())
        }
        _ => Err(PromptError::Template("there is no final message to continue".into())),
    }
}

fn cut_open_end(mut text: String) -> Result<String, PromptError> {
    let mark = OPEN_END.trim_end();
    let Some(at) = text.rfind(mark) else {
        return Err(PromptError::Template("the template does not print the final message".into()));
    };
    let kept = if text[at..].starts_with(OPEN_END) { at } else { text[..at].trim_end().len() };
    text.truncate(kept);
    Ok(text)
}
