//! Section `models`.

use std::{collections::BTreeMap, path::PathBuf};

/// Section `models`.
#[derive(Clone, Debug)]
pub struct ModelsSection {
    /// For every model without an entry.
    pub defaults: ModelEntry,
    /// By model id; fields left out are those of `defaults`.
    pub entries: BTreeMap<String, ModelEntry>,
    /// Which model takes the place of which; the first that matches counts.
    pub rules: Vec<ModelRule>,
    /// Other names of models: name, model.
    pub aliases: BTreeMap<String, String>,
}

impl ModelsSection {
    /// What holds for this model id.
    pub fn get(&self, id: &str) -> &ModelEntry {
        self.entries.get(id).unwrap_or(&self.defaults)
    }
}

/// One entry of `models.rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRule {
    /// The model that a request names; `*` stands for anything.
    pub pattern: String,
    /// The model that it gets instead.
    pub rewrite: Option<String>,
    /// Models tried in this order while nobody can take the request for the one before.
    pub fallback: Vec<String>,
}

/// `models.defaults`, and one entry of `models.entries`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// Where the tokenizer comes from.
    pub tokenizer: TokenizerSetting,
    /// Where the chat template comes from.
    pub chat_template: ChatTemplateSetting,
}

/// `tokenizer` of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSetting {
    /// The first of: the local model hub, our own engine's files on this machine, the engine's `/tokenize`.
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
    /// The one that comes with the tokenizer.
    Auto,
    /// A template file.
    File(PathBuf),
}
