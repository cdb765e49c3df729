//! What an engine looks up in its prefix cache for a request, as far as we know.

use dialect::{Dialect, RequestView, Usage};
use kv_blocks::Moment;
use parity::{IncomparableRequest, PredictionSample, ReplyKind};

use super::{record::Selection, tokenization::TokenizedPrompt};

/// One request's look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixExpectation {
    /// Tokens, about.
    tokens: u64,
    /// What the engine reports can be held against what was predicted: it looks up exactly our tokens, once. For several
    /// choices it does so several times, and its usage may tell the sum.
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
                // Their prompts are never exact: nothing of theirs is judged.
                (_, false) => ReplyKind::Chat,
                (_, true) => ReplyKind::ChatStream,
            },
        }
    }

    /// What was predicted beside what came of it, of a request that ended well; `None` if it cannot be judged.
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

    /// The same look-up where the engine counts in ways that need not be ours.
    pub(super) fn with_foreign_count(self) -> Self {
        Self {
            judged: false,
            ..self
        }
    }

    /// The same look-up by a worker that computes the prompt for another one, and answers in one piece.
    pub(super) fn of_prefill(self) -> Self {
        let reply = match self.reply {
            ReplyKind::Chat | ReplyKind::ChatStream => ReplyKind::Chat,
            ReplyKind::Completion | ReplyKind::CompletionStream => ReplyKind::Completion,
        };
        Self { reply, ..self }
    }

    /// The same request where nothing came of it that says anything.
    pub(super) fn incomparable(self, sent: Moment, until: Moment) -> IncomparableRequest {
        IncomparableRequest {
            sent,
            until,
            prompt_tokens: self.tokens,
        }
    }
}
