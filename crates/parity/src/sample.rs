//! One request, as far as parity goes.

use kv_blocks::Moment;

/// What was predicted for one request, and what came of it. Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionSample {
    /// When it was sent: counters read later include it.
    pub sent: Moment,
    /// Length of its prompt, as the engine counted it where it said so.
    pub prompt_tokens: u32,
    /// Cached tokens predicted when it was placed.
    pub predicted: u32,
    /// The same by the target's events alone; while those are believed nothing else.
    pub announced: u32,
    /// Cached tokens that the reply told.
    pub actual: Option<u32>,
    /// What kind of reply counted the prompt at all; `None`: it carried no usage.
    pub counted_by: Option<ReplyKind>,
    /// What the prediction went by.
    pub basis: Basis,
}

/// What a prediction went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The target's events.
    Events,
    /// Our own decisions.
    Decisions,
}

/// Replies of one kind tell the same things: an engine may tell cached tokens in some kinds and not in others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// A chat completion in one piece.
    Chat,
    /// A streamed one.
    ChatStream,
    /// A completion in one piece.
    Completion,
    /// A streamed one.
    CompletionStream,
}

impl ReplyKind {
    pub(crate) const COUNT: usize = 4;
}

/// A request that went to a target and cannot be held against its prediction. The engine may have looked its prompt up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomparableRequest {
    /// When it was sent.
    pub sent: Moment,
    /// When the engine had looked it up at the latest: at its first token, else at its end.
    pub until: Moment,
    /// Tokens of its prompt, about.
    pub prompt_tokens: u64,
}

impl PredictionSample {
    /// Predicted less actual tokens; `None` for a reply that did not tell.
    pub fn drift(&self) -> Option<i64> {
        Some(i64::from(self.predicted) - i64::from(self.actual?))
    }
}
