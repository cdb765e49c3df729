//! Tokenizer and chat template of a model: where they are looked for, and what was found.
//!
//! Looked for in this order: what the configuration says, the model's `root` if it is a local directory, the local
//! model-hub cache, the files our own simulated engine serves, the engine's own `/tokenize`; else none, and prompts are
//! identified by their text. Nothing is ever downloaded from elsewhere.
//!
//! **Invariant**: equal files give one [`PromptModel`], however many workers and names share them.

mod files;
mod hub;
mod store;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use prompt::PromptModel;

pub use files::ArtefactError;
pub(crate) use files::Files;
pub(crate) use hub::find_in_hub;
pub(crate) use store::ArtefactStore;

/// What is known about turning one model's prompts into tokens.
#[derive(Clone, Debug, Default)]
pub struct ModelArtefacts {
    /// The tokenizer and template; `None`: prompts are identified by the engine's word or by their text.
    pub prompt: Option<Arc<PromptModel>>,
    /// Where they came from.
    pub source: TokenizerSource,
    /// What went wrong in looking for them.
    pub problem: Option<Arc<str>>,
}

/// Where a model's tokenizer came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenizerSource {
    /// A local directory: configured, the model's `root`, or in the hub cache.
    Dir(PathBuf),
    /// Files served by our own simulated engine.
    Engine,
    /// Nowhere: the engine is asked for the tokens of each prompt.
    Remote,
    /// None: the text prefix stands in.
    #[default]
    None,
}

impl TokenizerSource {
    /// The word used in `/admin/models`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Dir(_) => "dir",
            Self::Engine | Self::Remote => "engine",
            Self::None => "none",
        }
    }
}

impl ModelArtefacts {
    fn remote(problem: Option<Arc<str>>) -> Self {
        Self { prompt: None, source: TokenizerSource::Remote, problem }
    }

    /// The verdict line's word: `exact` when prompts become the tokens the engine sees, `engine` when the engine is asked
    /// for them, else `none`.
    pub fn tokenizer_word(&self) -> &'static str {
        match (&self.prompt, &self.source) {
            (Some(_), _) => "exact",
            (None, TokenizerSource::Remote) => "engine",
            (None, _) => "none",
        }
    }

    /// What computes token ids: `fastokens`, `tokenizers`, `remote` (the engine is asked) or `none`.
    pub fn tokenizer_engine(&self) -> &'static str {
        match (&self.prompt, &self.source) {
            (Some(prompt), _) => prompt.tokenizer_engine(),
            (None, TokenizerSource::Remote) => "remote",
            (None, _) => "none",
        }
    }

    /// Whether these say more about prompts than others do: own files before the engine's word before nothing.
    pub(crate) fn better_than(&self, other: &Self) -> bool {
        let worth = |it: &Self| (it.prompt.is_some(), it.source == TokenizerSource::Remote);
        worth(self) > worth(other)
    }
}

/// Checks a configured tokenizer directory the way a start does: files present, within their limits, and loadable.
///
/// Reads files and computes for up to seconds: call it before the runtime starts, or off it.
pub fn check_dir(dir: &Path) -> Result<(), ArtefactError> {
    Files::read_dir(dir)?.load().map(drop)
}

/// A tokenizer directory or template file that the configuration names and that cannot be used.
#[derive(Debug)]
pub struct BadModelFile {
    /// The key, as in `models.entries["qwen"].tokenizer`.
    pub key: String,
    /// What it names.
    pub path: PathBuf,
    /// What is wrong with that.
    pub error: ArtefactError,
}

/// Checks every tokenizer directory and template file that the configuration names. A start with any bad one is
/// refused (78): they are used or refused, never silently left out.
///
/// Reads files and computes for up to seconds: call it before the runtime starts, or off it.
pub fn check_models(models: &config::Models) -> Vec<BadModelFile> {
    let mut bad = Vec::new();
    let mut checked: Vec<&Path> = Vec::new();
    let entries = models.entries.iter().map(|(id, model)| (format!("models.entries[{id:?}]"), model));
    for (at, model) in std::iter::once(("models.defaults".to_owned(), &models.defaults)).chain(entries) {
        // What an entry takes from the defaults is reported there, once.
        if let config::Tokenizer::Directory(dir) = &model.tokenizer
            && !checked.contains(&dir.as_path())
        {
            checked.push(dir);
            if let Err(error) = check_dir(dir) {
                bad.push(BadModelFile { key: format!("{at}.tokenizer"), path: dir.clone(), error });
            }
        }
        if let config::ChatTemplate::File(file) = &model.chat_template
            && !checked.contains(&file.as_path())
        {
            checked.push(file);
            if let Err(error) = files::read_template(file) {
                bad.push(BadModelFile { key: format!("{at}.chat_template"), path: file.clone(), error });
            }
        }
    }
    bad
}
