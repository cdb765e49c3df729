//! A model's own files, as bytes, and the contents of `tokenizer_config.json`.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The files that determine the tokens of a model's prompts.
#[derive(Clone, Copy, Debug)]
pub struct Artefacts<'a> {
    /// `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// `tokenizer_config.json`: special tokens, maximum prompt length, and often the template.
    pub tokenizer_config: Option<&'a [u8]>,
    /// A separate template, as in `chat_template.jinja`. It takes precedence over the one in the
    /// configuration.
    pub chat_template: Option<&'a str>,
}

/// The source of the chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateSource {
    /// A template file.
    File,
    /// `tokenizer_config.json`.
    TokenizerConfig,
    /// There is no template: chats cannot be rendered.
    None,
}

impl TemplateSource {
    /// Returns the word used in replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::TokenizerConfig => "tokenizer_config",
            Self::None => "none",
        }
    }
}

/// The reason why a model's files cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is larger than any real one.
    #[error(
        "{file} has {bytes} bytes, expected at most {limit}; check that it is the model's own file"
    )]
    TooLarge {
        /// The file.
        file: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The tokenizer library rejects the file.
    #[error(
        "tokenizer.json is not usable: {reason}; use the file that the engine was started with"
    )]
    Tokenizer {
        /// The library's message.
        reason: String,
    },
    /// The caller no longer waits for the load; see [`CancelFlag`](crate::CancelFlag).
    #[error(
        "the load was cancelled, as it took too long; use the file that the engine was started with"
    )]
    Cancelled,
    /// The configuration is not a JSON object.
    #[error(
        "tokenizer_config.json is not usable: {reason}; use the file that the engine was started with"
    )]
    Config {
        /// The fault.
        reason: String,
    },
}

/// Current tokenizers have at most some 35 MB.
const MAX_TOKENIZER_BYTES: usize = 128 << 20;
const MAX_CONFIG_BYTES: usize = 16 << 20;

impl Artefacts<'_> {
    pub(crate) fn check_sizes(&self) -> Result<(), LoadError> {
        let too_large = |file, bytes, limit| {
            if bytes > limit {
                Err(LoadError::TooLarge { file, bytes, limit })
            } else {
                Ok(())
            }
        };
        too_large(
            "tokenizer.json",
            self.tokenizer_json.len(),
            MAX_TOKENIZER_BYTES,
        )?;
        too_large(
            "tokenizer_config.json",
            self.tokenizer_config.map_or(0, <[u8]>::len),
            MAX_CONFIG_BYTES,
        )
    }
}

/// The parsed `tokenizer_config.json`.
#[derive(Debug, Default)]
pub(crate) struct TokenizerConfig {
    /// Names and texts of the special tokens, as templates see them: `bos_token` and so on.
    pub(crate) special_tokens: Vec<(String, String)>,
    /// Named templates; a lone one is `default`.
    pub(crate) templates: Vec<(String, String)>,
    /// Maximum prompt length, if the file has a realistic number.
    pub(crate) max_len: Option<u32>,
}

const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl TokenizerConfig {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, LoadError> {
        let config: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| LoadError::Config {
                reason: error.to_string(),
            })?;
        let special = |name: &&str| {
            let token = config.get(*name)?;
            // Either the text itself or a description of the token with its text inside.
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some(((*name).to_owned(), text.to_owned()))
        };
        let templates = match config.get("chat_template") {
            Some(Value::String(template)) => vec![("default".to_owned(), template.clone())],
            Some(Value::Array(named)) => named.iter().filter_map(named_template).collect(),
            _ => Vec::new(),
        };
        // Files without a limit carry a number like 1e30.
        let max_len = config
            .get("model_max_length")
            .and_then(Value::as_u64)
            .and_then(|len| u32::try_from(len).ok());
        Ok(Self {
            special_tokens: SPECIAL_TOKENS.iter().filter_map(special).collect(),
            templates,
            max_len,
        })
    }
}

fn named_template(entry: &Value) -> Option<(String, String)> {
    Some((
        entry.get("name")?.as_str()?.to_owned(),
        entry.get("template")?.as_str()?.to_owned(),
    ))
}

/// Returns the first 16 hex digits of the SHA-256 of the concatenated `parts`.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    digest
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_are_read_as_texts_or_descriptions() {
        let config = br#"{"bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","pad_token":null,"model_max_length":1e30}"#;
        let config = TokenizerConfig::read(config).unwrap();
        let expected = [
            ("bos_token".to_owned(), "<s>".to_owned()),
            ("eos_token".to_owned(), "</s>".to_owned()),
        ];
        assert_eq!(config.special_tokens, expected);
        assert_eq!(config.max_len, None);
    }

    #[test]
    fn a_configuration_may_carry_several_named_templates() {
        let config = br#"{"chat_template":[{"name":"default","template":"a"},{"name":"tool_use","template":"b"},7]}"#;
        let names: Vec<_> = TokenizerConfig::read(config)
            .unwrap()
            .templates
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["default", "tool_use"]);
    }

    #[test]
    fn a_broken_configuration_file_is_named() {
        let error = TokenizerConfig::read(b"[]").unwrap_err().to_string();
        assert!(
            error.starts_with("tokenizer_config.json is not usable:"),
            "{error}"
        );
    }
}
