//! Reads the files of one tokenizer within limits, digests them, and loads them.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use prompt::{Artefacts, PromptModel};
use sha2::{Digest, Sha256};

/// Largest single file read, in bytes. The largest tokenizers in use have about 35 MiB.
pub(crate) const LARGEST_FILE: usize = 64 << 20;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// The bytes of a tokenizer and its template.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) origin: String,
    pub(crate) tokenizer_json: Vec<u8>,
    pub(crate) tokenizer_config: Option<Vec<u8>>,
    pub(crate) chat_template: Option<String>,
}

/// The reason why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArtefactError {
    /// The directory does not exist.
    #[error("tokenizer directory {} does not exist: expected a directory with {TOKENIZER}, correct the path", .0.display())]
    NoDirectory(PathBuf),
    /// The path is not a directory.
    #[error("tokenizer path {} is not a directory: name the directory that holds {TOKENIZER}", .0.display())]
    NotADirectory(PathBuf),
    /// The directory has no tokenizer.
    #[error("tokenizer directory {} has no {TOKENIZER}: copy the model's tokenizer files there or correct the path", .0.display())]
    NoTokenizer(PathBuf),
    /// A configured template does not exist.
    #[error("chat template {} does not exist: correct the path, or leave chat_template at auto", .0.display())]
    NoTemplate(PathBuf),
    /// A file cannot be read.
    #[error("{} cannot be read ({error}): check its permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file is too large to belong to a tokenizer.
    #[error(
        "{path} is larger than {LARGEST_FILE} bytes: that is no tokenizer file, check the path"
    )]
    TooLarge {
        /// The file.
        path: String,
    },
    /// The template is not UTF-8 text.
    #[error("{path} is not UTF-8 text: save it as UTF-8")]
    NotText {
        /// The file.
        path: String,
    },
    /// The files exist but make no tokenizer.
    #[error("the tokenizer of {origin} cannot be loaded: {error}")]
    Unloadable {
        /// Directory or address.
        origin: String,
        /// The loader's error.
        error: prompt::LoadError,
    },
    /// The load was cut short.
    #[error(
        "the tokenizer of {origin} could not be loaded: its loading stopped unexpectedly, please report it"
    )]
    Stopped {
        /// Directory or address.
        origin: String,
    },
}

impl Files {
    /// Reads a directory. A template file beside the tokenizer wins over the one inside its
    /// configuration.
    pub(crate) fn read_dir(dir: &Path) -> Result<Self, ArtefactError> {
        match std::fs::metadata(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ArtefactError::NoDirectory(dir.to_owned()));
            }
            Err(error) => {
                return Err(ArtefactError::Unreadable {
                    path: dir.to_owned(),
                    error,
                });
            }
            Ok(found) if !found.is_dir() => {
                return Err(ArtefactError::NotADirectory(dir.to_owned()));
            }
            Ok(_) => {}
        }
        let tokenizer_json = read_capped(&dir.join(TOKENIZER))?
            .ok_or_else(|| ArtefactError::NoTokenizer(dir.to_owned()))?;
        let template_path = dir.join(TEMPLATE);
        let chat_template = match read_capped(&template_path)? {
            Some(bytes) => Some(text(&template_path.display().to_string(), bytes)?),
            None => None,
        };
        Ok(Self {
            origin: dir.display().to_string(),
            tokenizer_json,
            tokenizer_config: read_capped(&dir.join(CONFIG))?,
            chat_template,
        })
    }

    /// Returns a digest over everything that decides tokens; equal files are loaded once.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        let config = self.tokenizer_config.as_deref();
        let template = self.chat_template.as_ref().map(String::as_bytes);
        for part in [Some(self.tokenizer_json.as_slice()), config, template] {
            // The length keeps (a, bc) and (ab, c) apart, the marker an empty file and none.
            digest.update([u8::from(part.is_some())]);
            let part = part.unwrap_or_default();
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    /// Builds the tokenizer: up to seconds of computing.
    pub(crate) fn load(&self) -> Result<PromptModel, ArtefactError> {
        PromptModel::load(Artefacts {
            tokenizer_json: &self.tokenizer_json,
            tokenizer_config: self.tokenizer_config.as_deref(),
            chat_template: self.chat_template.as_deref(),
        })
        .map_err(|error| ArtefactError::Unloadable {
            origin: self.origin.clone(),
            error,
        })
    }
}

/// Reads a configured template file.
pub(crate) fn read_template(path: &Path) -> Result<String, ArtefactError> {
    match read_capped(path)? {
        Some(bytes) => text(&path.display().to_string(), bytes),
        None => Err(ArtefactError::NoTemplate(path.to_owned())),
    }
}

fn text(path: &str, bytes: Vec<u8>) -> Result<String, ArtefactError> {
    String::from_utf8(bytes).map_err(|_| ArtefactError::NotText {
        path: path.to_owned(),
    })
}

/// Reads a whole file; `None` if it does not exist. The cap also holds for files that grow during
/// the read.
fn read_capped(path: &Path) -> Result<Option<Vec<u8>>, ArtefactError> {
    let unreadable = |error| ArtefactError::Unreadable {
        path: path.to_owned(),
        error,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() > LARGEST_FILE {
        return Err(ArtefactError::TooLarge {
            path: path.display().to_string(),
        });
    }
    Ok(Some(bytes))
}
