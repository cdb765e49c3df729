//! Section `models`.

use std::{collections::BTreeMap, path::PathBuf};

use settings::{
    CheckedValue, KeySchema, Section, Setting, ValueKind,
    kinds::{AUTO, BLOCK_SIZE},
    word,
};

/// The keys of an entry, and the block size that [`crate::WorkerEntry::block_size`] falls back to.
const DEFAULTS: &[KeySchema] = &[
    ModelEntry::KEYS[0],
    ModelEntry::KEYS[1],
    KeySchema {
        name: "block_size",
        kind: BLOCK_SIZE,
        doc: "Tokens per KV block of workers that do not set their own; `auto` = asked of each engine.",
        ..ModelEntry::KEYS[0]
    },
];

settings::section! {
    /// Section `models`.
    #[derive(Clone, Debug)]
    pub struct ModelsSection {
        /// For every model without an entry.
        defaults: ModelEntry = "" in ValueKind::Section(DEFAULTS), restart;
        /// By model id; a key left out is that of `defaults`.
        entries: BTreeMap<String, ModelEntry> = "{}", restart;
        /// Which model takes the place of which; the first rule that matches counts.
        rules: Vec<ModelRule> = "[]", live;
        /// Other names of models: `NAME: MODEL`. `/v1/models` lists them.
        aliases: BTreeMap<String, String> = "{}", live;
    }
}

settings::section! {
    /// `models.defaults`, and one entry of `models.entries`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ModelEntry {
        /// Directory with `tokenizer.json`, or `auto` (the local model hub, our own engine's files
        /// on this machine, the engine's `/tokenize`), `engine` (its `/tokenize`), `none` (prompts
        /// are compared as text).
        tokenizer: TokenizerSetting = "auto", restart;
        /// Template file; `auto` = the one that comes with the tokenizer.
        chat_template: ChatTemplateSetting = "auto", restart;
    }
}

settings::section! {
    /// One entry of `models.rules`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct ModelRule {
        /// The model that a request names; `*` stands for anything. Required.
        pattern "match": String = "~", live;
        /// The model that it gets instead; unset = the one it names.
        rewrite: Option<String> = "~", live;
        /// Models tried in this order while no worker can take the request for the one before.
        fallback: Vec<String> = "[]", live;
    }
}

impl ModelsSection {
    /// Returns the settings of this model id.
    pub fn get(&self, id: &str) -> &ModelEntry {
        self.entries.get(id).unwrap_or(&self.defaults)
    }
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

impl Setting for TokenizerSetting {
    const KIND: ValueKind = ValueKind::WordOr(
        &[word("auto"), word("engine"), word("none")],
        &ValueKind::Path,
    );

    fn read(value: &CheckedValue) -> Option<Self> {
        Some(match (value.text(), value.word()) {
            (Some(path), _) => Self::Directory(path.into()),
            (None, Some("engine")) => Self::Engine,
            (None, Some("none")) => Self::None,
            (None, _) => Self::Auto,
        })
    }
}

impl Setting for ChatTemplateSetting {
    const KIND: ValueKind = ValueKind::WordOr(AUTO, &ValueKind::Path);

    fn read(value: &CheckedValue) -> Option<Self> {
        Some(
            value
                .text()
                .map_or(Self::Auto, |path| Self::File(path.into())),
        )
    }
}
