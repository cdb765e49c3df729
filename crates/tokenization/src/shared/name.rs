//! Redis keys of token ids.
//!
//! A key is a SHA-256 and reveals nothing of the prompt. Engines that agree in all its parts share
//! tokens: engines of one kind and version that loaded one model, requested by one name.

use std::fmt::Write as _;

use fleet::WorkerView;
use sha2::{Digest as _, Sha256};

use crate::token_cache::QueryDigest;

/// The first part of every key; it changes with the meaning of the rest.
const WORD: &str = "warmroute tokens 1";

/// The engines whose tokens these are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenScope<'a> {
    /// The path from which the engine loaded the model; the model's name, where the engine does not
    /// report the path.
    pub(crate) model: &'a str,
    /// The kind of engine.
    pub(crate) engine: &'a str,
    /// Empty where unknown.
    pub(crate) version: &'a str,
}

impl<'a> TokenScope<'a> {
    /// Returns the scope of `worker` for the model that requests name `model`.
    pub(crate) fn of(worker: &'a WorkerView, model: &'a str) -> Self {
        let adapter = worker.served.loras.iter().find(|lora| *lora.id == *model);
        let base = adapter.map_or(model, |lora| &lora.parent);
        let root = worker
            .served
            .models
            .iter()
            .find(|served| *served.id == *base)
            .and_then(|served| served.root.as_deref());
        Self {
            model: root.unwrap_or(base),
            engine: worker.engine.kind.as_str(),
            version: worker.engine.version.as_deref().unwrap_or_default(),
        }
    }
}

/// Returns the key, 64 characters. Each part follows its length, so no two lists of parts give the
/// same input.
pub(crate) fn name(digest: &QueryDigest, scope: TokenScope<'_>) -> String {
    let mut hash = Sha256::new();
    for part in [
        WORD.as_bytes(),
        scope.model.as_bytes(),
        scope.engine.as_bytes(),
        scope.version.as_bytes(),
        digest,
    ] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize()
        .iter()
        .fold(String::with_capacity(64), |mut name, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(name, "{byte:02x}");
            name
        })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use contract_id::contract;

    use super::*;

    const SCOPE: TokenScope<'static> = TokenScope {
        model: "/m/llama",
        engine: "vllm",
        version: "0.32.0",
    };

    #[test]
    #[contract("V30")]
    fn everything_that_affects_the_tokens_changes_the_name() {
        let names = HashSet::from([
            name(&[7; 32], SCOPE),
            name(&[8; 32], SCOPE),
            name(
                &[7; 32],
                TokenScope {
                    model: "/m/qwen",
                    ..SCOPE
                },
            ),
            name(
                &[7; 32],
                TokenScope {
                    engine: "sglang",
                    ..SCOPE
                },
            ),
            name(
                &[7; 32],
                TokenScope {
                    version: "0.33.0",
                    ..SCOPE
                },
            ),
            // The same letters, split otherwise.
            name(
                &[7; 32],
                TokenScope {
                    model: "/m/llamav",
                    engine: "llm",
                    ..SCOPE
                },
            ),
            name(
                &[7; 32],
                TokenScope {
                    engine: "vllm0",
                    version: ".32.0",
                    ..SCOPE
                },
            ),
        ]);
        assert_eq!(names.len(), 7);
        assert!(
            names
                .iter()
                .all(|name| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
        );
    }

    #[test]
    #[contract("V30")]
    fn names_are_the_same_in_every_version() {
        // Computed by another implementation of SHA-256, over the parts as the module describes
        // them.
        assert_eq!(
            name(&[7; 32], SCOPE),
            "65f6558618891c1da9d0f2b43d92bec55237bca649af9dc57b55793955eefb78"
        );
    }
}
