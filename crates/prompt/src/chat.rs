//! A chat request as its template sees it.
//!
//! Engines do not hand messages to the template as they came: fields are dropped, renamed, filled in and parsed first.
//! This module does what vLLM 0.32 does, also in what it refuses; the facts are held by what was recorded from it
//! (`tests/engine_tokens.rs`, `tests/engine_verdicts.rs`). What only the engine can know (images, a template of the
//! client's own) is an error, never a guess.

mod field;
mod message;
mod number;
mod text_only;
mod tool;

pub use text_only::text_only;

use serde_json::{Map, Value};

use self::field::{json, read};
use crate::{PromptError, template::ChatTemplates};

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

/// What the engine makes of a template variable in `chat_template_kwargs`.
enum Variable {
    /// The template sees it.
    Seen,
    /// The engine uses its own value in its place.
    Unused,
    /// The engine refuses the request.
    Refused,
    /// The engine does something else with it than handing it to the template.
    Unknown,
}

impl Variable {
    fn of(name: &str, value: &Value) -> Self {
        match name {
            "messages" | "conversation" => Self::Refused,
            "return_assistant_tokens_mask" if *value == true => Self::Refused,
            "tokenize" | "return_dict" | "add_generation_prompt" | "continue_final_message" => {
                Self::Unused
            }
            "tools" | "documents" | "chat_template" if value.is_null() => Self::Unused,
            "tools" | "documents" | "chat_template" => Self::Unknown,
            _ => Self::Seen,
        }
    }
}

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
        return Err(refused(
            "continue_final_message and add_generation_prompt exclude each other: set one of them",
        ));
    }
    let tools = chat
        .tools
        .map(|tools| json::<Vec<Value>>("tools", tools))
        .transpose()?;
    let tools = tools
        .map(|tools| {
            tools
                .into_iter()
                .map(tool::filled)
                .collect::<Result<Vec<_>, _>>()
        })
        .transpose()?;
    let template = templates.pick(tools.is_some());
    let messages = read::<Vec<Value>>("messages", chat.messages)?;
    if messages.is_empty() {
        return Err(refused("messages is empty: send at least one message"));
    }
    let mut conversation = message::conversation(messages, template)?;
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
        match Variable::of(&name, &value) {
            Variable::Seen => {
                variables.insert(name, value);
            }
            Variable::Unused => {}
            Variable::Refused => {
                return Err(refused(format!(
                    "chat_template_kwargs.{name} is not a client's to set"
                )));
            }
            Variable::Unknown => {
                return Err(unsupported(format!("{name} in chat_template_kwargs")));
            }
        }
    }
    if let Some(effort) = reasoning_effort(chat)? {
        // What the client says of thinking itself wins. Engines from before May 2026 pass on the effort only.
        variables
            .entry("enable_thinking")
            .or_insert((effort != "none").into());
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let documents = chat
        .documents
        .map(|documents| json("documents", documents))
        .transpose()?;
    variables.insert("documents".into(), documents.unwrap_or(Value::Null));
    variables.insert("tools".into(), tools.map_or(Value::Null, Value::Array));
    variables.insert("messages".into(), Value::Array(conversation));
    variables.insert(
        "add_generation_prompt".into(),
        chat.add_generation_prompt.into(),
    );
    let size =
        chat.messages.len() + chat.tools.map_or(0, str::len) + chat.documents.map_or(0, str::len);
    let text = template.render(variables, size, now_unix_s)?;
    if chat.continue_final_message {
        cut_open_end(text)
    } else {
        Ok(text)
    }
}

fn reasoning_effort(chat: &ChatRequest<'_>) -> Result<Option<String>, PromptError> {
    Ok(chat
        .reasoning_effort
        .map(|effort| json::<Option<String>>("reasoning_effort", effort))
        .transpose()?
        .flatten())
}

fn unsupported(what: impl Into<String>) -> PromptError {
    PromptError::Unsupported { what: what.into() }
}

fn refused(why: impl Into<String>) -> PromptError {
    PromptError::Refused(why.into())
}

fn open_last(conversation: &mut [Value]) -> Result<(), PromptError> {
    let content = conversation
        .last_mut()
        .and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.last_mut().and_then(|part| part.get_mut("text")),
        other => other,
    };
    match text {
        Some(Value::String(text)) => {
            text.push_str(OPEN_END);
            Ok(())
        }
        _ => Err(refused("there is no final message to continue")),
    }
}

fn cut_open_end(mut text: String) -> Result<String, PromptError> {
    let mark = OPEN_END.trim_end();
    let Some(at) = text.rfind(mark) else {
        return Err(refused(
            "the template does not print the final message, so it cannot be continued",
        ));
    };
    let kept = if text[at..].starts_with(OPEN_END) {
        at
    } else {
        text[..at].trim_end().len()
    };
    text.truncate(kept);
    Ok(text)
}
