//! The messages and tools of a chat as its template sees them, with the JSON that they were read
//! from: a request that continues the chat parses only what is new in it.
//!
//! **Invariant**: a message is read alike whatever follows it in its list, so equal JSON up to its
//! end is an equal message at its place.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Value, value::RawValue};

use super::{
    ChatRequest, TemplateValue, check, field::read, message, rejection::unsupported,
    template_input, tools,
};
use crate::{
    PromptError,
    shared_text::SharedText,
    template::{ChatTemplate, ChatTemplates, EarlierText, RenderedText, value_of},
};

/// Space between the tokens of JSON.
const SPACE: [char; 4] = [' ', '\n', '\r', '\t'];

/// Bytes of a value or a member beside its text, about: each object and list is an allocation of
/// its own.
const NODE_BYTES: usize = 160;

/// The messages and tools of a chat.
#[derive(Clone, Debug)]
pub(crate) struct ParsedChat {
    pub(crate) messages: ParsedMessages,
    tools: Option<Arc<ParsedTools>>,
    /// The client's variables of the template, as they were sent.
    variables: [Option<Box<str>>; 2],
}

/// The messages of a chat.
#[derive(Clone, Debug)]
pub(crate) struct ParsedMessages {
    /// A piece is the JSON from the end of the message before to the end of a message.
    json: SharedText,
    turns: Vec<TemplateValue>,
    /// The values and members of each message.
    nodes: Vec<usize>,
}

/// The tools of a chat.
#[derive(Debug)]
pub(crate) struct ParsedTools {
    json: Box<str>,
    value: TemplateValue,
    /// The values and members in it.
    nodes: usize,
}

impl ParsedChat {
    /// Reads a chat that begins with the first `known` messages of an earlier one. An error is no
    /// verdict on the request.
    pub(crate) fn read(
        templates: &ChatTemplates,
        chat: &ChatRequest<'_>,
        earlier: &Self,
        known: usize,
    ) -> Result<Self, PromptError> {
        check(chat)?;
        if chat.continue_final_message {
            return Err(unsupported("a message that stays open"));
        }
        let tools = ParsedTools::read(chat.tools, earlier.tools.as_ref())?;
        let template = templates.pick(tools.is_some());
        // Two templates may expect messages in different forms.
        let is_same = std::ptr::eq(template, templates.pick(earlier.tools.is_some()));
        let known = if is_same { known } else { 0 };
        Ok(Self {
            messages: earlier.messages.continued(known, chat.messages, template)?,
            tools,
            variables: [chat.chat_template_kwargs, chat.reasoning_effort]
                .map(|sent| sent.map(Box::from)),
        })
    }

    /// Returns how many iterations of the loop over the messages this chat and an earlier one have
    /// in common, if they have the first `known` messages in common.
    pub(crate) fn common_iterations(
        &self,
        templates: &ChatTemplates,
        earlier: &Self,
        known: usize,
    ) -> usize {
        let [this, before] = [self, earlier].map(|chat| templates.pick(chat.tools.is_some()));
        // A variable may hide a function of the template.
        if std::ptr::eq(this, before) && self.variables == earlier.variables {
            // An iteration may look at the next message.
            known.saturating_sub(1)
        } else {
            0
        }
    }

    /// Returns a chat without messages.
    pub(crate) fn empty(seed: u64) -> Self {
        let messages = ParsedMessages {
            json: SharedText::new(seed),
            turns: Vec::new(),
            nodes: Vec::new(),
        };
        Self {
            messages,
            tools: None,
            variables: [None, None],
        }
    }

    /// Renders the chat and compares the text with an earlier one.
    pub(crate) fn render(
        &self,
        templates: &ChatTemplates,
        chat: &ChatRequest<'_>,
        now_unix_s: i64,
        known: EarlierText<'_>,
    ) -> Result<RenderedText, PromptError> {
        let template = templates.pick(self.tools.is_some());
        let tools = match &self.tools {
            Some(tools) => tools.value.clone(),
            None => value_of(Value::Null),
        };
        let turns = self.messages.turns.clone();
        template.render(template_input(chat, tools, turns, now_unix_s)?, known)
    }

    /// Returns the memory that the chat takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        let (tools, tool_nodes) = self
            .tools
            .as_ref()
            .map_or((0, 0), |tools| (tools.json.len(), tools.nodes));
        let messages = &self.messages;
        let nodes = messages.nodes.iter().sum::<usize>() + tool_nodes;
        // The texts once as JSON and once as values; what a message calls reasoning is there twice.
        messages.json.memory_bytes() + 2 * messages.json.bytes() + 2 * tools + nodes * NODE_BYTES
    }
}

impl ParsedMessages {
    pub(crate) fn json(&self) -> &SharedText {
        &self.json
    }

    /// Reads a list that begins with the first `known` of these messages.
    fn continued(
        &self,
        known: usize,
        list: &str,
        template: &ChatTemplate,
    ) -> Result<Self, PromptError> {
        let start = self.json.bytes_of(known);
        let (rest, offset) = rest_of(list, start)?;
        let new = read::<Vec<Value>>("messages", &rest)?;
        let mut turns = Vec::with_capacity(known + new.len());
        turns.extend_from_slice(&self.turns[..known]);
        let mut nodes = self.nodes[..known].to_vec();
        for message in new {
            let message = message::alone(message, template)?;
            nodes.push(nodes_of(&message));
            turns.push(value_of(message));
        }
        if turns.is_empty() {
            return Err(unsupported("a chat without messages"));
        }
        let mut end = start;
        let pieces: Vec<Arc<str>> = ends(&rest)?
            .into_iter()
            .map(|at| Arc::from(&list[std::mem::replace(&mut end, offset + at)..offset + at]))
            .collect();
        let json = self.json.continued(known, pieces.into_iter());
        Ok(Self { json, turns, nodes })
    }
}

impl ParsedTools {
    fn read(
        json: Option<&str>,
        earlier: Option<&Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, PromptError> {
        let same = earlier.filter(|earlier| json == Some(&*earlier.json));
        if let Some(same) = same {
            return Ok(Some(Arc::clone(same)));
        }
        let parsed = tools(json)?;
        Ok(json.zip(parsed).map(|(json, tools)| {
            Arc::new(Self {
                json: json.into(),
                nodes: tools.iter().map(nodes_of).sum(),
                value: value_of(Value::Array(tools)),
            })
        }))
    }
}

/// Returns the number of values and members in a value.
fn nodes_of(value: &Value) -> usize {
    1 + match value {
        Value::Array(elements) => elements.iter().map(nodes_of).sum(),
        Value::Object(members) => members.values().map(|value| 1 + nodes_of(value)).sum(),
        _ => 0,
    }
}

/// Returns a list of the messages behind the first `start` bytes of a list, which end with a
/// message, and the offset of the former in the latter.
fn rest_of(list: &str, start: usize) -> Result<(Cow<'_, str>, usize), PromptError> {
    if start == 0 {
        return Ok((Cow::Borrowed(list), 0));
    }
    let rest = list[start..].trim_start_matches(SPACE);
    let malformed = || unsupported("a list of messages that is not plain");
    let offset = list.len() - rest.len();
    match rest.strip_prefix(',') {
        Some(further) if !further.trim_start_matches(SPACE).starts_with(']') => {
            Ok((Cow::Owned(["[", further].concat()), offset))
        }
        None if rest.trim_end_matches(SPACE) == "]" => Ok((Cow::Borrowed("[]"), offset)),
        _ => Err(malformed()),
    }
}

/// Returns the end of each item of a list.
fn ends(list: &str) -> Result<Vec<usize>, PromptError> {
    let items = read::<Vec<&RawValue>>("messages", list)?;
    let start = list.as_ptr() as usize;
    let end = |item: &&RawValue| item.get().as_ptr() as usize - start + item.get().len();
    Ok(items.iter().map(end).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_small_value_of_a_message_counts_in_the_memory_of_its_chat() {
        for (value, nodes) in [
            (json!("text"), 1),
            (json!([{}, [], 1]), 4),
            (json!({"a": {"b": null}, "c": [2]}), 8),
        ] {
            assert_eq!(nodes_of(&value), nodes, "{value}");
        }
    }
}
