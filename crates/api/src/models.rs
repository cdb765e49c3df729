//! Models with their tokenizers and templates.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// `GET /admin/models`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelReports {
    /// By id, ascending.
    pub models: Vec<ModelReport>,
}

/// One model of `GET /admin/models`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelReport {
    /// The model id that requests use.
    pub id: Arc<str>,
    /// Workers that list it, whatever their state.
    pub workers: Vec<Arc<str>>,
    /// The tokenizer of its prompts.
    pub tokenizer: TokenizerReport,
    /// The chat template.
    pub template: TemplateReport,
    /// Block sizes of its workers, ascending.
    pub block_sizes: Vec<u32>,
    /// The smallest among its workers.
    pub max_context_tokens: Option<u32>,
}

/// Tokenizer of a model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TokenizerReport {
    /// `dir`, `engine` or `none`.
    pub source: Name,
    /// The component that computes token ids: `fastokens`, `tokenizers`, `remote` (the engine) or
    /// `none`.
    pub engine: Name,
    /// Digest of the tokenizer.
    pub digest: Option<String>,
    /// Whether the fast tokenizer gives the same ids as the reference: `ok`, `failed`, or `skipped`
    /// without a reference.
    pub self_test: Name,
    /// Directory it was read from.
    pub path: Option<String>,
    /// The problem that the lookup met.
    pub problem: Option<Arc<str>>,
}

/// Chat template of a model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TemplateReport {
    /// Where the template came from: as the tokenizer's `source`, `none` without one.
    pub source: Name,
    /// Digest of the template.
    pub digest: Option<String>,
}
