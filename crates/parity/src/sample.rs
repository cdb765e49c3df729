//! One request's prediction and result.

use kv_blocks::Moment;

/// Predicted and actual cached tokens of one request. All counts are in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionSample {
    /// When the request was sent: counters read later include it.
    pub sent: Moment,
    /// Length of the prompt, as the engine counted it where the reply has the count.
    pub prompt_tokens: u32,
    /// Cached tokens predicted when the request was placed.
    pub predicted: u32,
    /// Cached tokens predicted from the target's events alone; equal to `predicted` while the
    /// events are trusted.
    pub announced: u32,
    /// Cached tokens that the reply reports.
    pub actual: Option<u32>,
    /// The kind of reply that counted the prompt; `None`: the reply had no usage.
    pub counted_by: Option<ReplyKind>,
    /// The basis of the prediction.
    pub basis: Basis,
}

/// The basis of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The target's events.
    Events,
    /// Our own decisions.
    Decisions,
}

/// Kinds of replies. An engine may report cached tokens in some kinds and not in others, but always
/// in the same way in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// A complete chat completion.
    Chat,
    /// A streamed chat completion.
    ChatStream,
    /// A complete text completion.
    Completion,
    /// A streamed text completion.
    CompletionStream,
    /// A complete reply of an engine's own generation API.
    Native,
    /// A streamed one.
    NativeStream,
}

impl ReplyKind {
    pub(crate) const COUNT: usize = 6;
}

/// A request that reached a target and cannot be compared with its prediction. The engine may have
/// looked its prompt up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomparableRequest {
    /// When the request was sent.
    pub sent: Moment,
    /// The latest time at which the engine can have looked it up: its first token, else its end.
    pub until: Moment,
    /// Approximate length of its prompt in tokens.
    pub prompt_tokens: u64,
}

impl PredictionSample {
    /// Returns predicted less actual tokens; `None` for a reply that does not report them.
    pub fn drift(&self) -> Option<i64> {
        Some(i64::from(self.predicted) - i64::from(self.actual?))
    }
}
