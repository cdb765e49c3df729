//! Requests to the engine, and their results.

use std::{sync::Arc, time::Duration};

use kv_blocks::{EngineHash, PromptMedia};

/// The id of a request, unique for the life of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A generation to run.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// Chosen by the caller, unique.
    pub id: RequestId,
    /// Token ids of the prompt; at least one.
    pub prompt: Arc<[u32]>,
    /// The media items of the placeholders among them: part of the hash of each block that has some.
    pub media: PromptMedia,
    /// Tokens to generate; at least one.
    pub output_tokens: u32,
    /// The finish reason after the last token.
    pub finish: Finish,
    /// The start of the reply; seed and prompt determine the rest.
    pub script: Option<Arc<[u32]>>,
    /// LoRA adapter by name: part of every block's hash.
    pub lora: Option<Arc<str>>,
    /// Cache salt: part of the first block's hash, and so of every later one's.
    pub salt: Option<Arc<str>>,
    /// Whether another engine computed the prompt: then this engine computes only its last token.
    pub transferred: bool,
    /// Leading blocks that another engine sends, if it was asked to.
    pub fetch: Option<FetchedPrefix>,
    /// Lower goes first, if the engine schedules by priority.
    pub priority: i64,
}

/// A generation without known text, as in traces: its blocks are known by name.
///
/// Its reply has no names, so no later request finds it; the reply's tokens are all 0.
#[derive(Clone, Debug)]
pub struct NamedRequest {
    /// Chosen by the caller, unique.
    pub id: RequestId,
    /// Tokens of the prompt; at least one.
    pub prompt_tokens: u32,
    /// The names of the prompt's blocks, first block first: an equal name means equal tokens and
    /// equal blocks before it. A partial last block may have a name too.
    pub blocks: Arc<[EngineHash]>,
    /// Tokens to generate; at least one.
    pub output_tokens: u32,
    /// Leading blocks that another engine sends, if it was asked to.
    pub fetch: Option<FetchedPrefix>,
    /// Lower goes first, if the engine schedules by priority.
    pub priority: i64,
}

/// Leading blocks of a prompt that another engine sends. Until they are there, or known not to come,
/// other requests are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchedPrefix {
    /// Leading tokens that the other engine holds; 0: it has none, and they are computed here.
    pub tokens: u32,
    /// Time from the request's arrival until they are there, or known not to come.
    pub time: Duration,
}

/// The finish reason of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended the reply.
    Stop,
    /// The reply reached the token limit.
    Length,
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmittedToken {
    /// The request of the token.
    pub id: RequestId,
    /// The token.
    pub token: u32,
    /// Prompt tokens found in the cache at the first scheduling, or transferred or fetched from
    /// another engine.
    pub cached_tokens: u32,
    /// Set on the last token.
    pub finish: Option<Finish>,
}

/// The reason why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The prompt or the reply has no tokens.
    #[error("a request needs at least one prompt token and one output token")]
    Empty,
    /// The request can never be scheduled.
    #[error(
        "prompt and reply take {tokens} tokens, but the engine holds {capacity}: send less or add blocks"
    )]
    TooLong {
        /// Tokens of prompt and reply together.
        tokens: u64,
        /// The capacity of the engine in tokens.
        capacity: u64,
    },
}
