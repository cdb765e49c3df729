//! A reply that is known before it is generated: calls of tools, JSON, thoughts, and replies that a stop string ends.
//!
//! The model generates its tokens like any other reply's, so usage, blocks and events are those of what was said. It is
//! a function of seed, prompt and request: a retried request says the same.

mod compose;
mod python_json;
mod sample;

use std::sync::Arc;

use engine_model::Finish;
use prompt::PromptModel;

pub(crate) use compose::{LengthLimit, OpenEnd, Speaker, compose};
use sample::sample;

use crate::detokenizer::Detokenizer;

/// Where what a token says belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// The model's own marks, which no client sees.
    Hidden,
    /// A thought.
    Reasoning,
    /// The reply's text.
    Content,
    /// The arguments of the call at this place.
    Call(usize),
}

/// What one token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenText {
    pub(crate) channel: Channel,
    pub(crate) text: String,
}

/// A call of a tool; its arguments are said token by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// Sixteen hex digits; each API puts its own word before them.
    pub(crate) id: String,
    pub(crate) name: String,
}

/// What a request wants said, beyond words.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplyOptions {
    /// Tools to call, with the JSON schema of their arguments.
    pub(crate) calls: Vec<(String, serde_json::Value)>,
    pub(crate) form: Option<ReplyForm>,
    pub(crate) thinking: bool,
    pub(crate) stop: Vec<String>,
    /// The reply ends with the stop string, not before it.
    pub(crate) keep_stop: bool,
}

/// Which form the reply's text has.
#[derive(Clone, Debug)]
pub(crate) enum ReplyForm {
    /// JSON that this schema allows.
    Schema(serde_json::Value),
    /// One of these texts.
    Choice(Vec<String>),
}

impl ReplyOptions {
    /// Nothing but words is wanted, as the model says them by itself.
    pub(crate) fn is_plain(&self) -> bool {
        self.calls.is_empty() && self.form.is_none() && !self.thinking && self.stop.is_empty()
    }
}

/// A whole reply.
#[derive(Clone, Debug)]
pub(crate) struct ReplyScript {
    /// What the model generates.
    pub(crate) tokens: Arc<[u32]>,
    /// What each of them says.
    pub(crate) texts: Vec<TokenText>,
    pub(crate) calls: Vec<ToolCall>,
    /// How it ends once all of it is out.
    pub(crate) finish: Finish,
    /// The stop string that ended it.
    pub(crate) stopped_by: Option<String>,
}

/// Why a reply ended, as clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// Nothing more to say.
    Stop,
    /// This stop string came.
    StopString(String),
    /// The limit of tokens was reached.
    Length,
    /// Tools are to be called.
    ToolCalls,
}

impl ReplyScript {
    /// What clients are told of an end of this kind.
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

    /// Says this text.
    fn text(&mut self, channel: Channel, text: &str) {
        // A text that cannot be tokenised has none of its own, and is said all the same.
        let tokens = self.model.text_tokens(text, false).unwrap_or_default();
        let tokens = if tokens.is_empty() { vec![0] } else { tokens };
        let mut pieces = pieces(self.model, &tokens);
        if pieces.concat() != text {
            // Some tokenizers change what they read: then the text comes with its first token.
            pieces = vec![String::new(); tokens.len()];
            text.clone_into(&mut pieces[0]);
        }
        self.push(channel, tokens, pieces);
    }

    /// Says these tokens.
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
