//! Everything besides the tokens that makes KV content differ.

use std::sync::Arc;

use crate::BlockSize;

/// The content that a namespace's hashes cover: exact tokens or text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PromptIdentity {
    /// Hashes over the tokens that the engine processes.
    Tokens,
    /// Hashes over the prompt's bytes, four per token: usable for affinity, never equal to engine
    /// blocks.
    TextPrefix,
}

/// The properties by which cached KV content differs although the tokens are equal.
///
/// Hashes of different namespaces never match: the index mixes the namespace into its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// Base model, as the worker names it.
    pub model: Arc<str>,
    /// LoRA adapter by name.
    pub lora: Option<Arc<str>>,
    /// Cache salt.
    pub salt: Option<Arc<str>>,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Exact tokens or text.
    pub identity: PromptIdentity,
}
