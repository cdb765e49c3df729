//! Replies that are known before generation: tool calls, JSON, reasoning, and replies that a stop
//! string ends.
//!
//! The model generates their tokens as for any other reply, so usage, blocks and events match the
//! text. A script is a function of seed, prompt and request: a retried request gets the same one.

mod compose;
mod python_json;
mod sample;
mod word_source;

use std::sync::Arc;

use engine_model::Finish;
use prompt::PromptModel;

pub(crate) use compose::{LengthLimit, OpenEnd, ReplyChoice, Vocabulary, compose};
use sample::sample;

use crate::detokenizer::Detokenizer;

/// The part of the reply that a token's text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// The model's own marks, invisible to clients.
    Hidden,
    /// The reasoning.
    Reasoning,
    /// The reply's text.
    Content,
    /// The arguments of the call at this place.
    Call(usize),
}

/// The text of one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenText {
    pub(crate) channel: Channel,
    pub(crate) text: String,
}

/// A tool call; its arguments are emitted token by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// Sixteen hex digits; each API adds its own prefix.
    pub(crate) id: String,
    pub(crate) name: String,
}

/// The requested features of a reply, beyond words.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplyOptions {
    /// Tools to call, with the JSON schema of their arguments.
    pub(crate) calls: Vec<(String, serde_json::Value)>,
    pub(crate) form: Option<ReplyForm>,
    pub(crate) thinking: bool,
    pub(crate) stop: Vec<String>,
    /// Whether the reply includes the stop string.
    pub(crate) keep_stop: bool,
}

/// The form of the reply's text.
#[derive(Clone, Debug)]
pub(crate) enum ReplyForm {
    /// JSON that this schema allows.
    Schema(serde_json::Value),
    /// One of these texts.
    Choice(Vec<String>),
}

impl ReplyOptions {
    /// Returns whether the reply is only words, as the model generates them by itself.
    pub(crate) fn is_plain(&self) -> bool {
        self.calls.is_empty() && self.form.is_none() && !self.thinking && self.stop.is_empty()
    }
}

/// A whole reply.
#[derive(Clone, Debug)]
pub(crate) struct ReplyScript {
    /// The generated tokens.
    pub(crate) tokens: Arc<[u32]>,
    /// The text of each token.
    pub(crate) texts: Vec<TokenText>,
    pub(crate) calls: Vec<ToolCall>,
    /// The finish reason after the last token.
    pub(crate) finish: Finish,
    /// The stop string that ended it.
    pub(crate) stopped_by: Option<String>,
}

/// The finish reason of a reply, as reported to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// The end of the reply.
    Stop,
    /// This stop string occurred.
    StopString(String),
    /// The reply reached the token limit.
    Length,
    /// The reply ends with tool calls.
    ToolCalls,
}

impl ReplyScript {
    /// Returns the reported finish reason for an end of this kind.
    pub(crate) fn ending(&self, finish: Finish) -> StopCause {
        match (finish, &self.stopped_by) {
            (Finish::Length, _) => StopCause::Length,
            (Finish::Stop, Some(stop)) => StopCause::StopString(stop.clone()),
            (Finish::Stop, None) if self.calls.is_empty() => StopCause::Stop,
            (Finish::Stop, None) => StopCause::ToolCalls,
        }
    }
}

/// Writes scripts.
#[derive(Debug)]
struct ScriptWriter<'a> {
    model: &'a PromptModel,
    tokens: Vec<u32>,
    texts: Vec<TokenText>,
}

impl<'a> ScriptWriter<'a> {
    fn new(model: &'a PromptModel) -> Self {
        Self {
            model,
            tokens: Vec::new(),
            texts: Vec::new(),
        }
    }

    fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Appends a text.
    fn text(&mut self, channel: Channel, text: &str) {
        // A text that cannot be tokenised has no tokens of its own, but is emitted all the same.
        let tokens = self.model.text_tokens(text, false).unwrap_or_default();
        let tokens = if tokens.is_empty() { vec![0] } else { tokens };
        let mut pieces = pieces(self.model, &tokens);
        if pieces.concat() != text {
            // Some tokenizers change their input: then the text comes with its first token.
            pieces = vec![String::new(); tokens.len()];
            text.clone_into(&mut pieces[0]);
        }
        self.push(channel, tokens, pieces);
    }

    /// Appends these tokens.
    fn words(&mut self, channel: Channel, tokens: Vec<u32>) {
        let pieces = pieces(self.model, &tokens);
        self.push(channel, tokens, pieces);
    }

    fn push(&mut self, channel: Channel, tokens: Vec<u32>, pieces: Vec<String>) {
        self.texts
            .extend(pieces.into_iter().map(|text| TokenText { channel, text }));
        self.tokens.extend(tokens);
    }
}

fn pieces(model: &PromptModel, tokens: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::default();
    tokens
        .iter()
        .map(|token| detokenizer.push(model, *token))
        .collect()
}
