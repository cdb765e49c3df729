//! Checks the configured model files before a start.

use std::path::{Path, PathBuf};

use super::files::{self, ArtefactError, Files};

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
