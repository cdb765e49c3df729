//! The models and adapters that a worker serves.

use std::sync::Arc;

/// A base model that a worker lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The id that requests use.
    pub id: Arc<str>,
    /// Where the engine loaded it from: a directory or a hub id.
    pub root: Option<Arc<str>>,
    /// Longest prompt plus reply, in tokens.
    pub max_model_len: Option<u32>,
    /// Creation time that the worker lists, in Unix seconds.
    pub created: i64,
    /// Owner that the worker lists.
    pub owned_by: Arc<str>,
}

/// A LoRA adapter that a worker lists: an entry with a `parent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedLora {
    /// The id that requests use, and the adapter's name in KV events.
    pub id: Arc<str>,
    /// The base model's id.
    pub parent: Arc<str>,
    /// Creation time that the worker lists, in Unix seconds.
    pub created: i64,
}

/// Models and adapters that a worker serves.
#[derive(Clone, Debug, Default)]
pub struct ServedModels {
    /// Base models.
    pub models: Vec<ServedModel>,
    /// Adapters.
    pub loras: Vec<ServedLora>,
    /// The model name of its events: the first base model it lists. Aliases of one engine share it.
    pub namespace_model: Option<Arc<str>>,
}
