//! Identities of blocks, and the number of tokens in one.

use std::{fmt, num::NonZeroU32};

/// Tokens in one block: 1 to 65,536. Not every engine supports 16, so no code may assume it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockSize(NonZeroU32);

/// A number of tokens that cannot be a block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizeError(u64);

impl BlockSize {
    /// The largest block, in tokens.
    pub const MAX: u32 = 1 << 16;

    /// Checks that `tokens` is in 1..=65,536.
    pub fn new(tokens: u64) -> Result<Self, BlockSizeError> {
        u32::try_from(tokens)
            .ok()
            .filter(|tokens| *tokens <= Self::MAX)
            .and_then(NonZeroU32::new)
            .map(Self)
            .ok_or(BlockSizeError(tokens))
    }

    /// Returns the tokens in one block.
    pub fn tokens(self) -> u32 {
        self.0.get()
    }

    /// Returns the whole blocks in `tokens` tokens; a trailing partial block does not count.
    pub fn whole_blocks(self, tokens: u32) -> u32 {
        tokens / self.tokens()
    }

    /// Returns the tokens in one block, as a slice length.
    pub fn len(self) -> usize {
        self.tokens() as usize
    }

    /// Returns false: a block holds at least one token.
    pub fn is_empty(self) -> bool {
        false
    }
}

impl fmt::Display for BlockSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "block size {} is out of range: expected 1 to {} tokens",
            self.0,
            BlockSize::MAX
        )
    }
}

impl std::error::Error for BlockSizeError {}

/// Identity of one block's tokens alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// Identity of a block *and of everything before it*: the key of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash(pub u64);

/// The engine's own identity of a block, in normal form: integers by two's complement, byte strings
/// by their last eight bytes, big-endian. Opaque; it only resolves parents and removals. Zero is a
/// possible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

impl fmt::Display for SequenceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_one_to_65536_tokens() {
        assert!(BlockSize::new(0).is_err());
        assert_eq!(BlockSize::new(1).unwrap().tokens(), 1);
        assert_eq!(BlockSize::new(65_536).unwrap().tokens(), 65_536);
        assert!(BlockSize::new(65_537).is_err());
        assert!(BlockSize::new(u64::MAX).is_err());
    }
}
