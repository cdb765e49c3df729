//! The engine's tokenizer: built in, or a model's own files.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use prompt::{Artefacts, PromptModel};

use crate::EngineError;

/// Tokenizer, chat template and the tokens that replies consist of.
#[derive(Debug)]
pub(crate) struct SimTokenizer {
    pub(crate) model: PromptModel,
    pub(crate) tokenizer_json: Bytes,
    pub(crate) tokenizer_config: Bytes,
    /// Tokens that are one word with the space before it, and that tokenise to themselves: a reply
    /// of such tokens has the same ids in the next turn's prompt, as a real model's mostly has.
    pub(crate) alphabet: Arc<[u32]>,
}

const BUILT_IN: &[u8] = include_bytes!("../assets/tokenizer.json");
const BUILT_IN_CONFIG: &[u8] = include_bytes!("../assets/tokenizer_config.json");

/// Enough words for replies that differ; more of them only delay the start.
const MOST_WORDS: usize = 2_048;

impl SimTokenizer {
    /// Loads the files in `dir`, or the built-in ones; `template` replaces their template.
    pub(crate) fn load(dir: Option<&Path>, template: Option<&Path>) -> Result<Self, EngineError> {
        let (tokenizer_json, tokenizer_config, own_template) = match dir {
            None => (
                Bytes::from_static(BUILT_IN),
                Bytes::from_static(BUILT_IN_CONFIG),
                None,
            ),
            Some(dir) => {
                let template = dir.join("chat_template.jinja");
                let template = if template.exists() {
                    Some(read(&template)?)
                } else {
                    None
                };
                (
                    read(&dir.join("tokenizer.json"))?,
                    read(&dir.join("tokenizer_config.json"))?,
                    template,
                )
            }
        };
        let template = template.map(read).transpose()?.or(own_template);
        let template = template.as_deref().map(String::from_utf8_lossy);
        let model = PromptModel::load(Artefacts {
            tokenizer_json: &tokenizer_json,
            tokenizer_config: Some(&tokenizer_config),
            chat_template: template.as_deref(),
        })
        .map_err(|error| EngineError::Tokenizer(error.to_string()))?;
        let alphabet = words(&model, &tokenizer_json)?;
        Ok(Self {
            model,
            tokenizer_json,
            tokenizer_config,
            alphabet,
        })
    }
}

fn read(path: &Path) -> Result<Bytes, EngineError> {
    std::fs::read(path)
        .map(Bytes::from)
        .map_err(|source| EngineError::TokenizerFile {
            path: path.to_owned(),
            source,
        })
}

/// Returns the reply tokens of a tokenizer; all its tokens if it has no such words.
fn words(model: &PromptModel, tokenizer_json: &[u8]) -> Result<Arc<[u32]>, EngineError> {
    #[derive(serde::Deserialize)]
    struct TokenizerFile {
        model: TokenizerModel,
    }
    #[derive(serde::Deserialize)]
    struct TokenizerModel {
        // A list of pairs in unigram models, a map in the others.
        #[serde(default)]
        vocab: serde_json::Value,
    }
    let file: TokenizerFile = serde_json::from_slice(tokenizer_json)
        .map_err(|error| EngineError::Tokenizer(error.to_string()))?;
    let mut all: Vec<(u32, &str)> = match &file.model.vocab {
        serde_json::Value::Object(map) => map
            .iter()
            .filter_map(|(text, id)| Some((u32::try_from(id.as_u64()?).ok()?, text.as_str())))
            .collect(),
        serde_json::Value::Array(pairs) => pairs
            .iter()
            .enumerate()
            .filter_map(|(id, pair)| Some((u32::try_from(id).ok()?, pair.get(0)?.as_str()?)))
            .collect(),
        _ => Vec::new(),
    };
    all.sort_unstable();
    let is_word = |text: &str| {
        text.strip_prefix(['\u{120}', '\u{2581}'])
            .is_some_and(|word| {
                word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_lowercase())
            })
    };
    let comes_back = |id: u32| {
        // Behind another word, as in replies: some tokenizers drop the space at the start of a
        // text.
        model
            .decode(&[id, id])
            .and_then(|text| model.text_tokens(&text, false))
            .is_ok_and(|ids| ids == [id, id])
    };
    let words: Vec<u32> = all
        .iter()
        .filter(|(_, text)| is_word(text))
        .map(|(id, _)| *id)
        .filter(|id| comes_back(*id))
        .take(MOST_WORDS)
        .collect();
    Ok(if words.is_empty() {
        all.iter().map(|(id, _)| *id).collect()
    } else {
        words.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_vocabulary_is_large_enough_for_distinct_replies() {
        let tokenizer = SimTokenizer::load(None, None).unwrap();
        assert!(
            tokenizer.alphabet.len() > 200,
            "{}",
            tokenizer.alphabet.len()
        );
    }

    #[test]
    fn a_reply_tokenizes_to_the_same_ids() {
        let tokenizer = SimTokenizer::load(None, None).unwrap();
        let ids: Vec<u32> = tokenizer.alphabet.iter().step_by(7).copied().collect();
        let text = tokenizer.model.decode(&ids).unwrap();
        assert_eq!(tokenizer.model.text_tokens(&text, false).unwrap(), ids);
    }
}
