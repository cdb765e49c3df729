//! The blocks of one sequence.

use std::sync::Arc;

use kv_blocks::{Namespace, PromptIdentity, SequenceHash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The blocks of one sequence, as the ledger counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceBlocks {
    /// Sequence hashes; a prefix of them may be active already.
    pub chain: Option<Arc<[SequenceHash]>>,
    /// Distinguishes equal hashes of different namespaces; equal in all processes.
    pub fingerprint: u64,
    /// Blocks that no other sequence can share: the partial one at the end, or all if the hashes
    /// are unknown.
    pub unshared: u64,
}

impl SequenceBlocks {
    /// Returns the number of all blocks.
    pub(crate) fn count(&self) -> u64 {
        self.unshared + self.chain.as_ref().map_or(0, |chain| chain.len() as u64)
    }
}

/// Returns the hash of a namespace. Replicas compare it, so it depends on nothing but its parts.
pub(crate) fn fingerprint(namespace: &Namespace) -> u64 {
    let Namespace {
        model,
        lora,
        salt,
        block_size,
        identity,
    } = namespace;
    // Another seed separates a name from none.
    let optional = |text: &Option<Arc<str>>, seed: u64| match text {
        Some(text) => xxh3_64_with_seed(text.as_bytes(), seed.wrapping_add(1)),
        None => xxh3_64_with_seed(&[], seed),
    };
    let names = optional(salt, optional(lora, xxh3_64_with_seed(model.as_bytes(), 0)));
    let sized = xxh3_64_with_seed(&block_size.tokens().to_le_bytes(), names);
    match identity {
        PromptIdentity::Tokens => sized,
        PromptIdentity::TextPrefix => sized.wrapping_add(1),
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::BlockSize;

    use super::*;

    fn namespace(lora: Option<&str>, salt: Option<&str>) -> Namespace {
        Namespace {
            model: "qwen".into(),
            lora: lora.map(Into::into),
            salt: salt.map(Into::into),
            block_size: BlockSize::new(16).expect("a block size"),
            identity: PromptIdentity::Tokens,
        }
    }

    #[test]
    fn the_fingerprint_is_equal_in_every_process_and_distinguishes_every_part() {
        let plain = namespace(None, None);
        assert_eq!(fingerprint(&plain), 0xd766_ab12_ca86_bfde);
        let text = Namespace {
            identity: PromptIdentity::TextPrefix,
            ..plain.clone()
        };
        let other_size = Namespace {
            block_size: BlockSize::new(32).expect("a block size"),
            ..plain.clone()
        };
        let mut all = [
            plain,
            text,
            other_size,
            namespace(Some("a"), None),
            namespace(None, Some("a")),
            namespace(Some(""), None),
            namespace(None, Some("")),
            namespace(Some("a"), Some("a")),
        ]
        .map(|namespace| fingerprint(&namespace))
        .to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
    }
}
