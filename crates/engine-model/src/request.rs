//! What goes in and what comes out.

use std::sync::Arc;

use kv_blocks::EngineHash;

/// Names a request for as long as its engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A generation to run.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    /// Chosen by the caller, never used twice.
    pub id: RequestId,
    /// Token ids of the prompt; at least one.
    pub prompt: Arc<[u32]>,
    /// Tokens to generate; at least one.
    pub output_tokens: u32,
    /// How the generation ends once they are out.
    pub finish: Finish,
    /// What the reply says; where it is silent, seed and prompt say it.
    pub script: Option<Arc<[u32]>>,
    /// LoRA adapter by name: part of every block's hash.
    pub lora: Option<Arc<str>>,
    /// Cache salt: part of the first block's hash, and so of every later one's.
    pub salt: Option<Arc<str>>,
    /// Another engine computed the prompt: of its tokens only the last one is computed here.
    pub transferred: bool,
    /// Lower goes first, where the engine schedules by it.
    pub priority: i64,
}

/// A generation to run of which nobody knows the text, as in traces: its blocks are known by name.
///
/// Nothing of its reply has a name, so no later request finds it; the reply's tokens are all 0.
#[derive(Clone, Debug)]
pub struct NamedRequest {
    /// Chosen by the caller, never used twice.
    pub id: RequestId,
    /// Tokens of the prompt; at least one.
    pub prompt_tokens: u32,
    /// What the prompt's blocks are called, first block first: the same name, the same tokens and the same blocks before
    /// it. A last block that the prompt fills in part may have a name too.
    pub blocks: Arc<[EngineHash]>,
    /// Tokens to generate; at least one.
    pub output_tokens: u32,
    /// Lower goes first, where the engine schedules by it.
    pub priority: i64,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model had nothing more to say.
    Stop,
    /// The limit of tokens was reached.
    Length,
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmittedToken {
    /// Whose token.
    pub id: RequestId,
    /// The token.
    pub token: u32,
    /// Prompt tokens that were found in the cache when the request was first scheduled, or came from another engine.
    pub cached_tokens: u32,
    /// Set on the last token.
    pub finish: Option<Finish>,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Nothing to do.
    #[error("a request needs at least one prompt token and one output token")]
    Empty,
    /// It could never be scheduled.
    #[error(
        "prompt and reply take {tokens} tokens, but the engine holds {capacity}: send less or add blocks"
    )]
    TooLong {
        /// Prompt and reply together.
        tokens: u64,
        /// What the engine can hold.
        capacity: u64,
    },
}
