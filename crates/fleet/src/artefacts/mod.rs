//! Tokenizer and chat template of a model: the lookup and its result.
//!
//! Lookup order: the configuration, the local model-hub cache, the files that our own simulated
//! engine serves on this machine, the engine's own `/tokenize`; else none, and the text identifies
//! a prompt. Nothing is ever downloaded from elsewhere, and no directory is read because an engine
//! names it.
//!
//! **Invariant**: equal files give one [`PromptModel`], however many workers and names share them.
//! Artefacts that workers bring are used for a model only while all its workers bring equal ones.

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
pub use hub::HubCache;
pub(crate) use hub::find_in_hub;
pub(crate) use store::ArtefactStore;

/// The means to turn one model's prompts into tokens.
#[derive(Clone, Debug, Default)]
pub struct ModelArtefacts {
    /// The tokenizer and template; `None`: the engine's token ids or the text identify a prompt.
    pub prompt: Option<Arc<PromptModel>>,
    /// Where the tokenizer comes from.
    pub source: TokenizerSource,
    /// The problem that the lookup met.
    pub problem: Option<Arc<str>>,
}

/// Where a model's tokenizer comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenizerSource {
    /// A local directory: configured, or in the hub cache.
    Dir(PathBuf),
    /// Files served by our own simulated engine.
    Engine,
    /// No local tokenizer: the engine tokenizes each prompt.
    Remote,
    /// No tokenizer: the text prefix stands in.
    #[default]
    None,
}

impl TokenizerSource {
    /// Returns the word used in `/admin/models`.
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
        Self {
            prompt: None,
            source: TokenizerSource::Remote,
            problem,
        }
    }

    /// Returns the word of the verdict line: `exact` when prompts become the tokens that the engine
    /// sees, `engine` when the engine tokenizes them, else `none`.
    pub fn tokenizer_word(&self) -> &'static str {
        match (&self.prompt, &self.source) {
            (Some(_), _) => "exact",
            (None, TokenizerSource::Remote) => "engine",
            (None, _) => "none",
        }
    }

    /// Returns the component that computes token ids: `fastokens`, `tokenizers`, `remote` (the
    /// engine) or `none`.
    pub fn tokenizer_engine(&self) -> &'static str {
        match (&self.prompt, &self.source) {
            (Some(prompt), _) => prompt.tokenizer_engine(),
            (None, TokenizerSource::Remote) => "remote",
            (None, _) => "none",
        }
    }

    /// Returns whether both have the same tokenizer and template, or both none.
    pub(crate) fn has_tokenizer_of(&self, other: &Self) -> bool {
        match (&self.prompt, &other.prompt) {
            // Equal files are one object.
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Merges the artefacts of a model's workers: their common tokenizer, if all of them have it.
    /// Otherwise an engine tokenizes where one can, or the text identifies a prompt.
    pub(crate) fn agreed(workers: impl Iterator<Item = (Arc<str>, Arc<Self>)>) -> Arc<Self> {
        let workers: Vec<_> = workers.collect();
        let with_prompt = workers.iter().find(|(_, found)| found.prompt.is_some());
        let remote = workers
            .iter()
            .find(|(_, found)| found.source == TokenizerSource::Remote);
        let Some((name, found)) = with_prompt else {
            let best = remote.or(workers.first());
            return best.map_or_else(Arc::default, |(_, found)| Arc::clone(found));
        };
        let Some((other, _)) = workers
            .iter()
            .find(|(_, other)| !found.has_tokenizer_of(other))
        else {
            return Arc::clone(found);
        };
        let problem = format!(
            "workers {name} and {other} serve one model with different tokenizers, or one of them without: none is used; \
             name the model's tokenizer under models.entries, or give the workers models of different names"
        );
        let source = remote.map_or(TokenizerSource::None, |_| TokenizerSource::Remote);
        Arc::new(Self {
            prompt: None,
            source,
            problem: Some(problem.into()),
        })
    }
}

/// Checks a configured tokenizer directory the way a start does: files present, within their
/// limits, and loadable.
///
/// Reads files and computes for up to seconds: call it before the runtime starts, or off it.
pub fn check_dir(dir: &Path) -> Result<(), ArtefactError> {
    Files::read_dir(dir)?.load().map(drop)
}

/// A configured tokenizer directory or template file that cannot be used.
#[derive(Debug)]
pub struct BadModelFile {
    /// The configuration key, as in `models.entries["qwen"].tokenizer`.
    pub key: String,
    /// The configured path.
    pub path: PathBuf,
    /// The reason.
    pub error: ArtefactError,
}

/// Checks every configured tokenizer directory and template file. A bad one refuses the start (exit
/// code 78): a configured file is never silently left out.
///
/// Reads files and computes for up to seconds: call it before the runtime starts, or off it.
pub fn check_models(models: &config::ModelsSection) -> Vec<BadModelFile> {
    let mut bad = Vec::new();
    let mut checked: Vec<&Path> = Vec::new();
    let entries = models
        .entries
        .iter()
        .map(|(id, model)| (format!("models.entries[{id:?}]"), model));
    for (at, model) in
        std::iter::once(("models.defaults".to_owned(), &models.defaults)).chain(entries)
    {
        // A value that an entry inherits from the defaults is reported there, once.
        if let config::TokenizerSetting::Directory(dir) = &model.tokenizer
            && !checked.contains(&dir.as_path())
        {
            checked.push(dir);
            if let Err(error) = check_dir(dir) {
                bad.push(BadModelFile {
                    key: format!("{at}.tokenizer"),
                    path: dir.clone(),
                    error,
                });
            }
        }
        if let config::ChatTemplateSetting::File(file) = &model.chat_template
            && !checked.contains(&file.as_path())
        {
            checked.push(file);
            if let Err(error) = files::read_template(file) {
                bad.push(BadModelFile {
                    key: format!("{at}.chat_template"),
                    path: file.clone(),
                    error,
                });
            }
        }
    }
    bad
}
