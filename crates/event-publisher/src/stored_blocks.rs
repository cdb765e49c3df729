//! Blocks to publish, their computed hashes and their checks.

use kv_blocks::{BlockSize, HashScheme, SequenceHash};
use kv_events::vllm::{WireHash, WireStored};

use crate::ArgumentError;

/// Blocks that can be reused from now on.
#[derive(Clone, Debug)]
pub struct StoredBlocks {
    /// Tokens of the blocks, one block after the other.
    pub tokens: Vec<u32>,
    /// The engine's own names of the blocks, unique for their content and everything before it. If
    /// `None`, they are computed from the tokens, and a partial block at the end is left out.
    pub hashes: Option<Vec<WireHash>>,
    /// The block before the first one; `None` where a prompt begins.
    pub parent: Option<WireHash>,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// The place of the blocks, `GPU` for an engine's own cache.
    pub medium: String,
    /// The adapter with which they were computed.
    pub lora_name: Option<String>,
}

impl StoredBlocks {
    /// Returns their event; without a whole block it has no hashes.
    pub(crate) fn into_event(self) -> Result<WireStored, ArgumentError> {
        let Self {
            mut tokens,
            hashes,
            parent,
            block_size: size,
            medium,
            lora_name,
        } = self;
        let hashes = hashes.unwrap_or_else(|| {
            tokens.truncate(tokens.len() / size.len() * size.len());
            let before = parent.map(WireHash::low).map(SequenceHash);
            let before = before.or_else(|| lora_name.as_deref().map(root_of_adapter));
            let chain = HashScheme::default().chain(before, &tokens, size);
            chain.into_iter().map(|hash| hash.0.into()).collect()
        });
        let expected = hashes.len().saturating_mul(size.len());
        if tokens.len() != expected {
            return Err(ArgumentError(format!(
                "tokens has {} tokens and hashes {} blocks: expected {expected} tokens, block_size for each block",
                tokens.len(),
                hashes.len()
            )));
        }
        check_unique(&hashes, parent)?;
        Ok(WireStored {
            hashes,
            parent,
            tokens,
            block_size: size.tokens(),
            lora_id: None,
            lora_name,
            medium: Some(medium),
            extra_keys: None,
        })
    }
}

/// Returns the parent hash of the first block of a prompt with an adapter, so that its blocks have
/// other hashes than those of the same tokens without it.
fn root_of_adapter(lora: &str) -> SequenceHash {
    let bytes: Vec<u32> = lora.bytes().map(u32::from).collect();
    SequenceHash(HashScheme::default().block_hash(&bytes).0)
}

/// A reader ignores an event that names a block twice, so it must not be published.
fn check_unique(hashes: &[WireHash], parent: Option<WireHash>) -> Result<(), ArgumentError> {
    let named = hashes.iter().copied().chain(parent);
    let mut sorted: Vec<_> = named.map(WireHash::low).collect();
    sorted.sort_unstable();
    match sorted.array_windows().find(|[one, next]| one == next) {
        None => Ok(()),
        Some([twice, _]) => Err(ArgumentError(format!(
            "hashes and parent name the block {twice} twice: expected a hash for each block"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    /// Blocks of two tokens.
    fn blocks(tokens: &[u32], hashes: Option<&[u64]>, parent: Option<u64>) -> StoredBlocks {
        StoredBlocks {
            tokens: tokens.to_vec(),
            hashes: hashes.map(|hashes| hashes.iter().copied().map(WireHash::from).collect()),
            parent: parent.map(WireHash::from),
            block_size: BlockSize::new(2).expect("in range"),
            medium: "GPU".to_owned(),
            lora_name: None,
        }
    }

    fn names(blocks: StoredBlocks) -> Vec<u64> {
        let event = blocks.into_event().expect("the blocks can be published");
        event.hashes.into_iter().map(WireHash::low).collect()
    }

    #[test]
    #[contract("DY37")]
    fn blocks_of_the_engine_keep_their_names_tokens_and_parent() {
        let event = blocks(&[1, 2, 3, 4], Some(&[8, u64::MAX]), Some(7)).into_event();
        let event = event.expect("the blocks can be published");
        assert_eq!(event.hashes, [8, u64::MAX].map(WireHash::from));
        assert_eq!(event.parent.map(WireHash::low), Some(7));
        assert_eq!((event.tokens, event.block_size), (vec![1, 2, 3, 4], 2));
        assert_eq!(event.medium.as_deref(), Some("GPU"));
    }

    #[test]
    #[contract("DY37")]
    fn computed_names_depend_on_everything_before_the_block_and_on_the_adapter() {
        let one = names(blocks(&[1, 2, 3, 4], None, None));
        assert_eq!(names(blocks(&[1, 2], None, None)), one[..1]);
        assert_eq!(names(blocks(&[3, 4], None, Some(one[0]))), one[1..]);
        assert_ne!(names(blocks(&[3, 4], None, None)), one[1..]);
        let mut adapted = blocks(&[1, 2], None, None);
        adapted.lora_name = Some("a".to_owned());
        assert_ne!(names(adapted), one[..1]);
    }

    #[test]
    #[contract("DY37")]
    fn a_partial_block_is_left_out_where_names_are_computed() {
        let whole = names(blocks(&[1, 2], None, None));
        assert_eq!(names(blocks(&[1, 2, 3], None, None)), whole);
        assert!(names(blocks(&[1], None, None)).is_empty());
    }

    #[test]
    #[contract("DY37")]
    fn blocks_that_a_reader_would_ignore_are_refused() {
        let two_for_three =
            "tokens has 3 tokens and hashes 1 blocks: expected 2 tokens, block_size for each block";
        let none_for_two =
            "tokens has 2 tokens and hashes 0 blocks: expected 0 tokens, block_size for each block";
        for (refused, said) in [
            (blocks(&[1, 2, 3], Some(&[1]), None), two_for_three),
            (blocks(&[1, 2], Some(&[]), None), none_for_two),
            (
                blocks(&[1, 2, 3, 4], Some(&[5, 5]), None),
                "hashes and parent name the block 5 twice: expected a hash for each block",
            ),
            (
                blocks(&[1, 2], Some(&[7]), Some(7)),
                "hashes and parent name the block 7 twice: expected a hash for each block",
            ),
        ] {
            let refused = refused.into_event().expect_err(said);
            assert_eq!(refused.to_string(), said);
        }
    }
}
