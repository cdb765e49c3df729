//! Tokenizer and chat template of a model: where they are looked for, and what was found.
//!
//! Looked for in this order: what the configuration says, the model's `root` if it is a local directory, the local
//! model-hub cache, the files our own simulated engine serves; else none, and prompts are identified by their text.
//! Nothing is ever downloaded from elsewhere.
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
    /// The tokenizer and template; `None`: prompts are identified by their text.
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
    /// None: the text prefix stands in.
    #[default]
    None,
}

impl TokenizerSource {
    /// The word used in `/admin/models`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Dir(_) => "dir",
            Self::Engine => "engine",
            Self::None => "none",
        }
    }
}

impl ModelArtefacts {
    /// The verdict line's word: `exact` when prompts become the tokens the engine sees.
    pub fn tokenizer_word(&self) -> &'static str {
        if self.prompt.is_some() { "exact" } else { "none" }
    }
}

/// Checks a configured tokenizer directory the way a start does: files present, within their limits, and loadable.
///
/// Reads files and computes for up to seconds: call it before the runtime starts, or off it.
pub fn check_dir(dir: &Path) -> Result<(), ArtefactError> {
    Files::read_dir(dir)?.load().map(drop)
}

/// Checks every tokenizer directory and template file that the configuration names, and says what is wrong with each,
/// beside the model id it stands under (`defaults` for `models.defaults`). A start with any of these is refused (78).
///
/// Reads files and computes for up to seconds: call it before the runtime starts, or off it.
pub fn check_models(models: &config::Models) -> Vec<(String, ArtefactError)> {
    let mut problems = Vec::new();
    let all = models.entries.iter().map(|(id, model)| (id.as_str(), model));
    let mut checked: Vec<&config::Model> = Vec::new();
    for (id, model) in std::iter::once(("defaults", &models.defaults)).chain(all) {
        if checked.contains(&model) {
            continue;
        }
        checked.push(model);
        if let config::Tokenizer::Directory(dir) = &model.tokenizer
            && let Err(error) = check_dir(dir)
        {
            problems.push((id.to_owned(), error));
        }
        if let config::ChatTemplate::File(path) = &model.chat_template
            && let Err(error) = files::read_template(path)
        {
            problems.push((id.to_owned(), error));
        }
    }
    problems
}
