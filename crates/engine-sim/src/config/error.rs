//! Why an engine does not start.

use std::path::PathBuf;

/// The reason why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A flag has an invalid value.
    #[error("--{flag} {value}: expected {expected}")]
    Flag {
        /// The flag, without dashes.
        flag: &'static str,
        /// The given value.
        value: String,
        /// The expected form.
        expected: String,
    },
    /// The address is not available.
    #[error(transparent)]
    Listen(#[from] net::ListenError),
    /// A tokenizer or template file is not readable.
    #[error(
        "{path} cannot be read ({source}): --tokenizer takes a directory with tokenizer.json and tokenizer_config.json, \
         --chat-template a file"
    )]
    TokenizerFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The tokenizer's files are invalid.
    #[error("the tokenizer cannot be used: {0}")]
    Tokenizer(String),
}

impl EngineError {
    pub(super) fn flag(
        flag: &'static str,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Flag {
            flag,
            value: value.to_string(),
            expected: expected.into(),
        }
    }
}

pub(super) fn at_least_one(name: &'static str, value: u32) -> Result<(), EngineError> {
    if value == 0 {
        Err(EngineError::flag(name, value, "at least 1"))
    } else {
        Ok(())
    }
}
