//! Text to token ids and back.
//!
//! One tokenizer behind one seam: a faster one may stand beside it later, where a self-test shows equal ids.
//!
//! **Invariant**: the model's own truncation and padding settings are off; the engine applies its limits elsewhere.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{LoadError, PromptError};

#[derive(Debug)]
pub(crate) struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    pub(crate) fn load(json: &[u8]) -> Result<Self, LoadError> {
        let unusable = |reason: String| LoadError::Tokenizer { reason };
        let loaded = guarded(|| {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)?;
            tokenizer.with_truncation(None)?;
            tokenizer.with_padding(None);
            Ok(tokenizer)
        });
        loaded.map(Self).map_err(unusable)
    }

    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        // Without offsets: nobody reads them.
        guarded(|| Ok(self.0.encode_fast(text, add_special_tokens)?.get_ids().to_vec())).map_err(PromptError::Tokenizer)
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String, PromptError> {
        guarded(|| self.0.decode(ids, false)).map_err(PromptError::Tokenizer)
    }
}

/// Runs the library; a panic inside it costs this one call. Its state is caches that stay valid between their steps.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer library panicked".to_owned()),
    }
}
