//! Section `models`.

use std::{collections::BTreeMap, path::PathBuf};

/// Section `models`.
#[derive(Clone, Debug)]
pub struct ModelsSection {
    /// Settings of models without an entry.
    pub defaults: ModelEntry,
    /// Entries by model id; missing fields are those of `defaults`.
    pub entries: BTreeMap<String, ModelEntry>,
    /// Rewrite rules; the first match counts.
    pub rules: Vec<ModelRule>,
    /// Aliases of models: name, model.
    pub aliases: BTreeMap<String, String>,
}

impl ModelsSection {
    /// Returns the settings of this model id.
    pub fn get(&self, id: &str) -> &ModelEntry {
        self.entries.get(id).unwrap_or(&self.defaults)
    }
}

/// One entry of `models.rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRule {
    /// Pattern of the requested model; `*` matches anything.
    pub pattern: String,
    /// Model that replaces it.
    pub rewrite: Option<String>,
    /// Models tried in this order while no worker can take the request for the previous one.
    pub fallback: Vec<String>,
}

/// `models.defaults`, and one entry of `models.entries`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// Source of the tokenizer.
    pub tokenizer: TokenizerSetting,
    /// Source of the chat template.
    pub chat_template: ChatTemplateSetting,
}

/// `tokenizer` of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSetting {
    /// The first of: the local model hub, our own engine's files on this machine, the engine's
    /// `/tokenize`.
    Auto,
    /// A directory with `tokenizer.json`.
    Directory(PathBuf),
    /// The engine's `/tokenize`.
    Engine,
    /// None: prompts are compared as text.
    None,
}

/// `chat_template` of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatTemplateSetting {
    /// The one from the tokenizer's directory.
    Auto,
    /// A template file.
    File(PathBuf),
}
