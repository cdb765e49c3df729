//! Converts a chat request into the form that its template sees.
//!
//! Engines do not pass messages to the template unchanged: fields are dropped, renamed, defaulted
//! and parsed first. This module does what vLLM 0.32 does, including its rejections; recordings of
//! it verify the facts (`tests/suite/engine_tokens.rs`, `tests/suite/engine_verdicts.rs`). A feature that only
//! the engine can evaluate (images, a client's own template) is an error, never a guess.

mod content;
mod field;
mod message;
mod number;
mod parsed;
mod rejection;
mod text_only;
mod tool;
mod tool_call;

pub use text_only::text_only;

pub(crate) use self::parsed::ParsedChat;

use minijinja::value::Value as TemplateValue;
use serde_json::{Map, Value};

use self::{
    field::{json, read},
    rejection::{refused, unsupported},
};
use crate::{
    PromptError,
    template::{ChatTemplates, EarlierText, TemplateInput, value_of},
};

/// A chat request: JSON texts of its fields, and its flags with the engine's defaults.
#[derive(Clone, Copy, Debug)]
pub struct ChatRequest<'a> {
    /// A list of messages.
    pub messages: &'a str,
    /// A list of tools.
    pub tools: Option<&'a str>,
    /// A list of documents.
    pub documents: Option<&'a str>,
    /// The client's own template. Engines reject it unless they are configured to trust clients.
    pub chat_template: Option<&'a str>,
    /// An object of variables for the template.
    pub chat_template_kwargs: Option<&'a str>,
    /// The reasoning effort of the model: a word.
    pub reasoning_effort: Option<&'a str>,
    /// Whether the chat ends with the lead-in of the reply. Engines default to true.
    pub add_generation_prompt: bool,
    /// Whether the last message stays open.
    pub continue_final_message: bool,
    /// Whether the tokenizer's special tokens are added to those of the template. Engines default
    /// to false.
    pub add_special_tokens: bool,
}

/// Marks the end of the open message's text; the mark and everything after it are cut off. The
/// space at its end shows whether the template trims its output. Private-use letters, so that no
/// template treats it specially.
const OPEN_END: &str = "\u{f8ff}open\u{f8ff} ";

/// The engine's treatment of a template variable in `chat_template_kwargs`.
enum Variable {
    /// The engine passes it to the template.
    Seen,
    /// The engine uses its own value in its place.
    Unused,
    /// The engine rejects the request.
    Refused,
    /// The engine uses it in another way.
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
    check(chat)?;
    let tools = tools(chat.tools)?;
    let template = templates.pick(tools.is_some());
    let messages = read::<Vec<Value>>("messages", chat.messages)?;
    if messages.is_empty() {
        return Err(refused("messages is empty: send at least one message"));
    }
    let mut conversation = message::conversation(messages, template)?;
    if chat.continue_final_message {
        open_last(&mut conversation)?;
    }
    let tools = value_of(tools.map_or(Value::Null, Value::Array));
    let messages = conversation.into_iter().map(value_of).collect();
    let input = template_input(chat, tools, messages, now_unix_s)?;
    let text = template.render(input, EarlierText::default())?.rest;
    if chat.continue_final_message {
        cut_open_end(text)
    } else {
        Ok(text)
    }
}

/// Rejects what no template can render.
fn check(chat: &ChatRequest<'_>) -> Result<(), PromptError> {
    if chat.chat_template.is_some() {
        return Err(unsupported("a template of the client's own"));
    }
    if chat.continue_final_message && chat.add_generation_prompt {
        return Err(refused(
            "continue_final_message and add_generation_prompt exclude each other: set one of them",
        ));
    }
    Ok(())
}

/// Returns what the template sees of the request.
fn template_input(
    chat: &ChatRequest<'_>,
    tools: TemplateValue,
    messages: Vec<TemplateValue>,
    now_unix_s: i64,
) -> Result<TemplateInput, PromptError> {
    let mut variables = variables(chat)?;
    if let Some(effort) = reasoning_effort(chat)? {
        // The client's own thinking settings take precedence. Engines from before May 2026 pass on
        // the effort only.
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
    variables.insert(
        "add_generation_prompt".into(),
        chat.add_generation_prompt.into(),
    );
    let size =
        chat.messages.len() + chat.tools.map_or(0, str::len) + chat.documents.map_or(0, str::len);
    Ok(TemplateInput {
        variables,
        tools,
        messages,
        size,
        now_unix_s,
    })
}

/// Returns the tools, filled as the engine fills them.
fn tools(tools: Option<&str>) -> Result<Option<Vec<Value>>, PromptError> {
    let tools = tools
        .map(|tools| json::<Vec<Value>>("tools", tools))
        .transpose()?;
    tools
        .map(|tools| {
            tools
                .into_iter()
                .map(tool::filled)
                .collect::<Result<Vec<_>, _>>()
        })
        .transpose()
}

/// Returns the client's own variables of the template.
fn variables(chat: &ChatRequest<'_>) -> Result<Map<String, Value>, PromptError> {
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
    Ok(variables)
}

fn reasoning_effort(chat: &ChatRequest<'_>) -> Result<Option<String>, PromptError> {
    Ok(chat
        .reasoning_effort
        .map(|effort| json::<Option<String>>("reasoning_effort", effort))
        .transpose()?
        .flatten())
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
    let end = if text[at..].starts_with(OPEN_END) {
        at
    } else {
        text[..at].trim_end().len()
    };
    text.truncate(end);
    Ok(text)
}
