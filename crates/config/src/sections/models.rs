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
        doc: "Tokens per KV block of workers that set none. `auto`: as each engine reports it.",
        ..ModelEntry::KEYS[0]
    },
];

settings::section! {
    /// Section `models`.
    #[derive(Clone, Debug)]
    pub struct ModelsSection {
        /// Settings of models without an entry.
        defaults: ModelEntry = "" in ValueKind::Section(DEFAULTS), restart;
        /// Settings by model id. A missing key has the value in `defaults`.
        entries: BTreeMap<String, ModelEntry> = "{}", restart;
        /// Rules that replace the requested model. The first rule that matches applies.
        rules: Vec<ModelRule> = "[]", live;
        /// Further names of models, as `NAME: MODEL`. `/v1/models` lists them.
        aliases: BTreeMap<String, String> = "{}", live;
    }
}

settings::section! {
    /// `models.defaults`, and one entry of `models.entries`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ModelEntry {
        /// Directory with `tokenizer.json`, or: `hub:ORG/NAME`, that model of the local model hub, else
        /// as `auto`; `auto`, the first of the local model hub, our own engine's files on this machine
        /// and the engine's `/tokenize`; `engine`, its `/tokenize`; `none`, prompts are compared as
        /// text.
        tokenizer: TokenizerSetting = "auto", restart;
        /// Template file. `auto`: the template in the tokenizer's files.
        chat_template: ChatTemplateSetting = "auto", restart;
    }
}

settings::section! {
    /// One entry of `models.rules`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct ModelRule {
        /// Requested model to which the rule applies; `*` matches any text. Required.
        pattern "match": String = "~", live;
        /// Model that serves the request. Unset: the requested one.
        rewrite: Option<String> = "~", live;
        /// Models to try in this order if no worker can serve the one before.
        fallback: Vec<String> = "[]", live;
    }
}

impl ModelsSection {
    /// Returns the settings of this model id.
    pub fn get(&self, id: &str) -> &ModelEntry {
        self.entries.get(id).unwrap_or(&self.defaults)
    }
}

/// Begins the id of a model of the local model hub.
const HUB: &str = "hub:";

/// `tokenizer` of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSetting {
    /// The first of: the local model hub, our own engine's files on this machine, the engine's
    /// `/tokenize`.
    Auto,
    /// A directory with `tokenizer.json`.
    Directory(PathBuf),
    /// A model of the local model hub, by its id; as `Auto` if it is not there.
    Hub(String),
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
            (Some(text), _) => match text.strip_prefix(HUB) {
                Some(id) => Self::Hub(id.to_owned()),
                None => Self::Directory(text.into()),
            },
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
