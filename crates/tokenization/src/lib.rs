//! Tokenization: the identity of a prompt, as token ids if possible, else as text.
//!
//! Token ids come from the model's own tokenizer or, without one, from an engine (or from an
//! engine's answer to another router); those of a chat with images, audio or videos come from an
//! engine, with the hashes of these. This stage never fails a request: on any error the prompt is
//! identified by its text prefix, and the receipt says so.

mod background;
mod breaker;
mod compute_pool;
mod conversation_gauges;
mod engine;
mod engine_query;
mod given;
mod local;
mod redis_pool;
mod render_limits;
mod render_query;
mod render_reply;
mod shared;
mod stage;
mod token_cache;
mod tokenize_query;
mod tokenized_prompt;
mod worker_client;

pub use self::{
    compute_pool::ComputePool,
    engine::EngineTokenizer,
    local::{cost_of, text_of},
    redis_pool::RedisPool,
    shared::{RedisTokenStore, SharedTokensError},
    stage::{PromptInput, TokenizationStage},
    tokenized_prompt::TokenizedPrompt,
    worker_client::WorkerClient,
};
