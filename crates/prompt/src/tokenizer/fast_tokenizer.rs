//! The fast library.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde_json::Value;

/// The fast library with a model's tokenizer.
pub(super) struct FastTokenizer {
    tokenizer: fastokens::Tokenizer,
    /// Whether it panicked on a text: the library is young, and the state of its thread-local
    /// caches after a panic is unverified.
    dropped: AtomicBool,
}

impl FastTokenizer {
    /// Loads a tokenizer file; `None` if the library cannot use it.
    pub(super) fn load(described: Value) -> Option<Self> {
        let tokenizer = guarded(|| {
            let mut tokenizer = fastokens::Tokenizer::from_json(described)?;
            tokenizer.set_truncation(None);
            tokenizer.set_padding(None);
            // This crate's cache is bounded, counted and serves both libraries.
            tokenizer.enable_segment_cache(0);
            Ok(tokenizer)
        })
        .ok()?;
        Some(Self {
            tokenizer,
            dropped: AtomicBool::new(false),
        })
    }

    /// Returns whether it is not used any more.
    pub(super) fn is_dropped(&self) -> bool {
        self.dropped.load(Relaxed)
    }

    /// Returns the ids, or `None` if the library fails or panics.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        match catch_unwind(AssertUnwindSafe(|| {
            self.tokenizer
                .encode_with_special_tokens(text, add_special_tokens)
        })) {
            Ok(ids) => ids.ok(),
            Err(_) => {
                self.dropped.store(true, Relaxed);
                None
            }
        }
    }
}

/// Runs a library; a panic inside it fails only this call. Its state is caches that stay valid
/// between their steps.
pub(super) fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer library panicked".to_owned()),
    }
}
