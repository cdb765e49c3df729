//! The key of a prompt's beginning: requests with the same beginning have the same key.
//!
//! The key is a digest over the model and the text that similar conversations share: the system
//! prompt, or else the first message. All requests with one system prompt and one model have the
//! same key, whatever follows the prompt.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::{PromptPart, RawJson, RequestView, volatile_prefix::steady_text};

/// The text that represents a prompt's beginning. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anchor<'a> {
    /// The system prompt.
    System(Cow<'a, str>),
    /// The first message that is not a system message, or the prompt outside a chat.
    Message(Cow<'a, str>),
}

impl<'a> Anchor<'a> {
    /// Returns the anchor of a request in one of OpenAI's forms; that of a messages request is the
    /// anchor of its chat ([`crate::messages_to_chat`]). `None` if it has no usable text.
    pub fn of(view: &RequestView<'a>) -> Option<Self> {
        match &view.prompt {
            PromptPart::Messages(messages) => Self::of_messages(messages.raw()),
            PromptPart::Text(text) => not_empty(text.clone()).map(Self::Message),
            PromptPart::TokenIds(_)
            | PromptPart::TokenIdsWithMedia { .. }
            | PromptPart::Batch { .. }
            | PromptPart::None => None,
        }
    }

    /// Returns the first system message; if it is missing or empty, the first other message.
    fn of_messages(messages: RawJson<'a>) -> Option<Self> {
        let mut first_message = None;
        for message in messages.elements()? {
            let (role, content) = (message.member("role"), message.member("content"));
            let role = role.and_then(RawJson::string);
            let text = || {
                content
                    .and_then(content_text)
                    .map(steady_text)
                    .and_then(not_empty)
            };
            if matches!(role.as_deref(), Some("system" | "developer")) {
                let Some(text) = text() else { break };
                return Some(Self::System(text));
            }
            if first_message.is_none() {
                first_message = Some(message);
            }
        }
        let first =
            first_message.or_else(|| messages.elements()?.find(|message| !is_system(*message)))?;
        let text = first
            .member("content")
            .and_then(content_text)
            .and_then(not_empty)?;
        Some(Self::Message(text))
    }

    /// Returns the digest over the model's name and at most `max_bytes` of the text, cut between
    /// characters.
    ///
    /// ```
    /// use dialect::{Anchor, Dialect, view};
    ///
    /// let body = br#"{"model": "m", "messages": [{"role": "system", "content": "You are terse."}]}"#;
    /// let view = view(Dialect::Chat, body).unwrap();
    /// let anchor = Anchor::of(&view).unwrap();
    /// assert_eq!(anchor.key("m", 1024), anchor.key("m", 14));
    /// assert_ne!(anchor.key("m", 1024), anchor.key("n", 1024));
    /// ```
    pub fn key(&self, model: &str, max_bytes: usize) -> [u8; 32] {
        let (kind, text) = match self {
            Self::System(text) => (b'S', text),
            Self::Message(text) => (b'M', text),
        };
        let cut = text.floor_char_boundary(max_bytes);
        Sha256::new()
            .chain_update(model)
            .chain_update([0, kind])
            .chain_update(&text[..cut])
            .finalize()
            .into()
    }
}

fn not_empty(text: Cow<'_, str>) -> Option<Cow<'_, str>> {
    (!text.is_empty()).then_some(text)
}

fn is_system(message: RawJson<'_>) -> bool {
    let role = message.member("role").and_then(RawJson::string);
    matches!(role.as_deref(), Some("system" | "developer"))
}

/// Returns a text, or the joined text parts of a list of content blocks.
pub(crate) fn content_text(content: RawJson<'_>) -> Option<Cow<'_, str>> {
    if let Some(text) = content.string() {
        return Some(text);
    }
    let mut joined = String::new();
    for block in content.elements()? {
        let kind = block.member("type").and_then(RawJson::string);
        if kind
            .as_deref()
            .is_none_or(|kind| kind == "text" || kind == "input_text")
            && let Some(text) = block.member("text").and_then(RawJson::string)
        {
            joined.push_str(&text);
        }
    }
    Some(Cow::Owned(joined))
}
