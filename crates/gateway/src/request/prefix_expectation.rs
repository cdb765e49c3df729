//! The prefix cache lookup that an engine is expected to make for a request.

use dialect::{Dialect, RequestView, Usage};
use kv_blocks::Moment;
use parity::{IncomparableRequest, PredictionSample, ReplyKind};

use tokenization::TokenizedPrompt;

use super::selection::Selection;

/// One request's lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixExpectation {
    /// Tokens, about.
    tokens: u64,
    /// Whether the engine's report is comparable with the prediction: the engine looks up exactly
    /// the router's tokens, once. For several choices it looks up several times, and its usage may
    /// be the sum.
    judged: bool,
    reply: ReplyKind,
}

impl PrefixExpectation {
    pub(super) fn of(dialect: Dialect, view: &RequestView<'_>, prompt: &TokenizedPrompt) -> Self {
        let choices = view.n.unwrap_or(1);
        Self {
            tokens: u64::from(prompt.tokens).saturating_mul(choices.into()),
            judged: prompt.source.is_exact() && choices == 1 && !view.skips_prefix_cache,
            reply: match (dialect, view.stream) {
                (Dialect::Chat, false) => ReplyKind::Chat,
                (Dialect::Chat, true) => ReplyKind::ChatStream,
                (Dialect::Completions, false) => ReplyKind::Completion,
                (Dialect::Completions, true) => ReplyKind::CompletionStream,
                // Their prompts are never exact, so they are never compared.
                (_, false) => ReplyKind::Chat,
                (_, true) => ReplyKind::ChatStream,
            },
        }
    }

    /// Returns the prediction and the result of a successful request; `None` if they are
    /// incomparable.
    pub(super) fn sample(self, won: &Selection, usage: Option<Usage>) -> Option<PredictionSample> {
        let counted = usage
            .map(|usage| usage.prompt_tokens)
            .filter(|tokens| *tokens > 0);
        self.judged.then(|| PredictionSample {
            sent: won.sent,
            prompt_tokens: counted
                .unwrap_or_else(|| u32::try_from(self.tokens).unwrap_or(u32::MAX)),
            predicted: won.predicted_cached_tokens,
            announced: won.announced_cached_tokens,
            actual: usage.and_then(|usage| usage.cached_tokens),
            counted_by: counted.map(|_| self.reply),
            basis: won.basis,
        })
    }

    /// Marks a lookup as counted by an engine that may count otherwise than the router.
    pub(super) fn with_foreign_count(self) -> Self {
        Self {
            judged: false,
            ..self
        }
    }

    /// Returns the lookup of the prefill leg, whose reply is not streamed.
    pub(super) fn of_prefill(self) -> Self {
        let reply = match self.reply {
            ReplyKind::Chat | ReplyKind::ChatStream => ReplyKind::Chat,
            ReplyKind::Completion | ReplyKind::CompletionStream => ReplyKind::Completion,
        };
        Self { reply, ..self }
    }

    /// Returns the request as incomparable.
    pub(super) fn incomparable(self, sent: Moment, until: Moment) -> IncomparableRequest {
        IncomparableRequest {
            sent,
            until,
            prompt_tokens: self.tokens,
        }
    }
}
