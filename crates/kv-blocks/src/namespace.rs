//! What keeps equal tokens with different KV content apart.

use std::sync::Arc;

use crate::BlockSize;

/// Whether a namespace's hashes are over exact tokens or over text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PromptIdentity {
    /// Hashes over the tokens the engine sees.
    Tokens,
    /// Hashes over the prompt's bytes, four standing for a token: good for affinity, never equal to engine blocks.
    TextPrefix,
}

/// The dimensions in which cached KV content differs although tokens are equal.
///
/// Hashes of different namespaces never meet: the index mixes the namespace into its key.
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
