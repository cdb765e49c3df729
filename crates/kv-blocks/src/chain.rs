//! Computes sequence hashes from tokens.

use std::sync::{Arc, Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    BlockHash, BlockSize, MediaHash, PromptIdentity, PromptMedia, SequenceHash,
    chain_head::{self, ChainHead},
};

/// How tokens are hashed. One namespace has one scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashScheme {
    /// XXH3-64 with a seed over little-endian u32 tokens; the first sequence hash is the block
    /// hash, each later one hashes the previous sequence hash and the block hash, both
    /// little-endian. Source: contract MC7.
    Xxh3 {
        /// Seed of every XXH3 call.
        seed: u64,
    },
    /// Chained 64-bit FNV-1a over whole tokens, for compatibility. Source: contract V8.
    Fnv1a,
}

impl Default for HashScheme {
    fn default() -> Self {
        Self::Xxh3 { seed: 1337 }
    }
}

const FNV_BASIS: u64 = 14_695_981_039_346_656_037;
const FNV_PRIME: u64 = 1_099_511_628_211;

impl HashScheme {
    /// Returns the hash of one block's tokens alone.
    ///
    /// For [`HashScheme::Fnv1a`] this is the hash of the block as the first of a sequence.
    pub fn block_hash(self, tokens: &[u32]) -> BlockHash {
        match self {
            Self::Xxh3 { seed } => {
                // One block is at most 64 Ki tokens; typical ones (16 to 128 tokens) fit the stack
                // buffer.
                let mut small = [0u8; 512];
                let bytes = tokens.len() * 4;
                if bytes <= small.len() {
                    for (slot, token) in small.chunks_exact_mut(4).zip(tokens) {
                        slot.copy_from_slice(&token.to_le_bytes());
                    }
                    BlockHash(xxh3_64_with_seed(&small[..bytes], seed))
                } else {
                    let wide: Vec<u8> = tokens
                        .iter()
                        .flat_map(|token| token.to_le_bytes())
                        .collect();
                    BlockHash(xxh3_64_with_seed(&wide, seed))
                }
            }
            Self::Fnv1a => BlockHash(fnv_step(0, tokens)),
        }
    }

    /// Returns the sequence hash of a block of `tokens` after `parent` (`None`: the first block of
    /// its sequence).
    pub fn extend(self, parent: Option<SequenceHash>, tokens: &[u32]) -> SequenceHash {
        match self {
            Self::Xxh3 { seed } => {
                let own = self.block_hash(tokens).0;
                let Some(parent) = parent else {
                    return SequenceHash(own);
                };
                let mut both = [0u8; 16];
                both[..8].copy_from_slice(&parent.0.to_le_bytes());
                both[8..].copy_from_slice(&own.to_le_bytes());
                SequenceHash(xxh3_64_with_seed(&both, seed))
            }
            Self::Fnv1a => SequenceHash(fnv_step(parent.map_or(0, |parent| parent.0), tokens)),
        }
    }

    /// Like [`Self::extend`], for a block with multimodal items: their hash counts as two more
    /// tokens, which no block of the same size has.
    pub fn extend_with(
        self,
        parent: Option<SequenceHash>,
        tokens: &[u32],
        media: Option<MediaHash>,
    ) -> SequenceHash {
        match media {
            None => self.extend(parent, tokens),
            Some(media) => self.extend(parent, &[tokens, &media.words()].concat()),
        }
    }

    /// Returns the sequence hashes of the whole blocks of `tokens`, first block first; a trailing
    /// partial block has none.
    ///
    /// ```
    /// use kv_blocks::{BlockSize, HashScheme};
    ///
    /// let tokens: Vec<u32> = (1..=40).collect();
    /// let chain = HashScheme::default().chain(None, &tokens, BlockSize::new(16).unwrap());
    /// assert_eq!(chain.len(), 2);
    /// assert_eq!(chain[0].to_string(), "ea06fc71a5ee6e88");
    /// ```
    pub fn chain(
        self,
        parent: Option<SequenceHash>,
        tokens: &[u32],
        size: BlockSize,
    ) -> Vec<SequenceHash> {
        let mut last = parent;
        tokens
            .chunks_exact(size.len())
            .map(|block| {
                let hash = self.extend(last, block);
                last = Some(hash);
                hash
            })
            .collect()
    }
}

fn fnv_step(previous: u64, tokens: &[u32]) -> u64 {
    let mut hash = FNV_BASIS ^ previous.wrapping_mul(FNV_PRIME);
    for token in tokens {
        hash = (hash ^ u64::from(*token)).wrapping_mul(FNV_PRIME);
    }
    hash
}

/// One prompt, cut into blocks on demand: a chain is hashed at the first request for its block
/// size.
///
/// Where the exact tokens are unknown, four bytes of the prompt's text stand for a token. The two
/// kinds are in different namespaces and never match each other.
#[derive(Debug)]
pub struct PromptBlocks {
    content: PromptContent,
    chains: Mutex<Vec<(BlockSize, Arc<[SequenceHash]>)>>,
    /// What is known of the chains before they are computed.
    heads: Mutex<Vec<ChainHead>>,
}

/// The content of a prompt that its blocks are cut from.
#[derive(Debug)]
enum PromptContent {
    Tokens(HashScheme, Arc<[u32]>),
    /// Tokens of which some are placeholders.
    TokensWithMedia(HashScheme, Arc<[u32]>, PromptMedia),
    Text(Vec<u8>),
}

/// Bytes of text that stand for one token.
const TEXT_TOKEN: usize = 4;

impl PromptContent {
    fn chain(&self, size: BlockSize) -> Vec<SequenceHash> {
        match self {
            Self::Tokens(scheme, tokens) => scheme.chain(None, tokens, size),
            Self::TokensWithMedia(scheme, tokens, media) => {
                chain_with_media(*scheme, tokens, size, media)
            }
            Self::Text(text) => text_chain(text, size),
        }
    }
}

fn chain_with_media(
    scheme: HashScheme,
    tokens: &[u32],
    size: BlockSize,
    media: &PromptMedia,
) -> Vec<SequenceHash> {
    let mut last = None;
    tokens
        .chunks_exact(size.len())
        .zip(media.hashes(size))
        .map(|(block, media)| {
            let hash = scheme.extend_with(last, block, media);
            last = Some(hash);
            hash
        })
        .collect()
}

/// Returns the sequence hashes of the whole blocks of a text. Each is the hash of the block's bytes
/// with the previous one as seed: these hashes are compared with each other only, so the text is
/// hashed where it lies.
fn text_chain(text: &[u8], size: BlockSize) -> Vec<SequenceHash> {
    let whole = text.len().div_ceil(TEXT_TOKEN) / size.len();
    let mut last = 0;
    text.chunks(TEXT_TOKEN * size.len())
        .take(whole)
        .map(|block| {
            last = xxh3_64_with_seed(block, last);
            SequenceHash(last)
        })
        .collect()
}

impl PromptBlocks {
    /// Creates a prompt from its exact `tokens`.
    pub fn of_tokens(scheme: HashScheme, tokens: Arc<[u32]>) -> Self {
        Self {
            content: PromptContent::Tokens(scheme, tokens),
            chains: Mutex::default(),
            heads: Mutex::default(),
        }
    }

    /// Creates a prompt from its exact `tokens`, of which some are the placeholders of `media`.
    pub fn of_tokens_with_media(
        scheme: HashScheme,
        tokens: Arc<[u32]>,
        media: PromptMedia,
    ) -> Self {
        Self {
            content: PromptContent::TokensWithMedia(scheme, tokens, media),
            chains: Mutex::default(),
            heads: Mutex::default(),
        }
    }

    /// Creates a prompt from its exact `tokens`, of which the first `shared` are those of
    /// `earlier`: its chains extend the ones that were computed there.
    pub fn of_continued_tokens(earlier: &Self, shared: usize, tokens: Arc<[u32]>) -> Self {
        let PromptContent::Tokens(scheme, known) = &earlier.content else {
            // A text has no tokens that another prompt could share.
            return Self::of_tokens(HashScheme::default(), tokens);
        };
        debug_assert_eq!(known[..shared], tokens[..shared]);
        Self {
            heads: Mutex::new(earlier.heads(shared)),
            ..Self::of_tokens(*scheme, tokens)
        }
    }

    /// Creates a prompt that is known as text only.
    pub fn of_text(text: Vec<u8>) -> Self {
        Self {
            content: PromptContent::Text(text),
            chains: Mutex::default(),
            heads: Mutex::default(),
        }
    }

    /// Creates a prompt of which only the sequence hashes of its whole blocks of `size` tokens are
    /// known, as in traces. It has no tokens, and no blocks of any other size.
    pub fn of_chain(scheme: HashScheme, size: BlockSize, chain: Arc<[SequenceHash]>) -> Self {
        Self {
            content: PromptContent::Tokens(scheme, Arc::default()),
            chains: Mutex::new(vec![(size, chain)]),
            heads: Mutex::default(),
        }
    }

    /// Returns whether the tokens are exact or stand for text.
    pub fn identity(&self) -> PromptIdentity {
        match self.content {
            PromptContent::Tokens(..) | PromptContent::TokensWithMedia(..) => {
                PromptIdentity::Tokens
            }
            PromptContent::Text(_) => PromptIdentity::TextPrefix,
        }
    }

    /// Returns the exact tokens, if they alone identify the prompt; `None`: only the text is known,
    /// or some are placeholders of multimodal items.
    pub fn tokens(&self) -> Option<&Arc<[u32]>> {
        match &self.content {
            PromptContent::Tokens(_, tokens) => Some(tokens),
            PromptContent::TokensWithMedia(..) | PromptContent::Text(_) => None,
        }
    }

    /// Returns the number of tokens; an estimate when [`PromptBlocks::identity`] is
    /// [`PromptIdentity::TextPrefix`].
    pub fn token_count(&self) -> u32 {
        let tokens = match &self.content {
            PromptContent::Tokens(_, tokens) | PromptContent::TokensWithMedia(_, tokens, _) => {
                tokens.len()
            }
            PromptContent::Text(text) => text.len().div_ceil(TEXT_TOKEN),
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Returns the sequence hashes of the whole blocks of `size` tokens, computed once per size.
    pub fn chain(&self, size: BlockSize) -> Arc<[SequenceHash]> {
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, chain)) = chains.iter().find(|(known, _)| *known == size) {
            return Arc::clone(chain);
        }
        let chain: Arc<[SequenceHash]> = match (chain_head::take(&self.heads, size), &self.content)
        {
            (Some(head), PromptContent::Tokens(scheme, tokens)) => head.extended(*scheme, tokens),
            _ => self.content.chain(size).into(),
        };
        chains.push((size, Arc::clone(&chain)));
        chain
    }

    /// Returns the chains of the first `tokens` tokens, as far as they are known.
    fn heads(&self, tokens: usize) -> Vec<ChainHead> {
        let chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        let computed = chains
            .iter()
            .map(|(size, chain)| ChainHead::new(*size, Arc::clone(chain), tokens));
        computed
            .chain(chain_head::all(&self.heads, tokens))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const VECTORS: &str = include_str!("../../../tests/fixtures/xxh3_vectors.json");

    fn number(text: &serde_json::Value) -> u64 {
        text.as_str().unwrap().parse().unwrap()
    }

    fn small(number: &serde_json::Value) -> u32 {
        number.as_u64().unwrap().try_into().unwrap()
    }

    #[test]
    #[contract("MC7", "V10", "D1")]
    fn xxh3_chains_equal_the_published_vectors() {
        let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let count = small(&case["num_tokens"]);
            // The longest case has a rule (1..=2048) in place of its tokens.
            let tokens: Vec<u32> = case["tokens"].as_array().map_or_else(
                || (1..=count).collect(),
                |tokens| tokens.iter().map(small).collect(),
            );
            let size = BlockSize::new(case["block_size"].as_u64().unwrap()).unwrap();
            let scheme = HashScheme::Xxh3 {
                seed: case["seed"].as_u64().unwrap(),
            };
            let want: Vec<_> = case["seq_hashes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|h| SequenceHash(number(h)))
                .collect();
            assert_eq!(scheme.chain(None, &tokens, size), want, "{}", case["name"]);
            let blocks: Vec<_> = tokens
                .chunks_exact(size.len())
                .map(|block| scheme.block_hash(block))
                .collect();
            let want: Vec<_> = case["local_block_hashes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|h| BlockHash(number(h)))
                .collect();
            assert_eq!(blocks, want, "{}", case["name"]);
        }
    }

    #[test]
    #[contract("V8", "V6", "V10")]
    fn fnv_chain_follows_the_rule_token_by_token() {
        let size = BlockSize::new(2).unwrap();
        let chain = HashScheme::Fnv1a.chain(None, &[7, 8, 9, 10, 11], size);
        let first = ((FNV_BASIS ^ 7).wrapping_mul(FNV_PRIME) ^ 8).wrapping_mul(FNV_PRIME);
        let start = FNV_BASIS ^ first.wrapping_mul(FNV_PRIME);
        let second = ((start ^ 9).wrapping_mul(FNV_PRIME) ^ 10).wrapping_mul(FNV_PRIME);
        assert_eq!(chain, [SequenceHash(first), SequenceHash(second)]);
    }

    /// Vectors computed apart from this code, in Python, from the rule as contract V8 gives it.
    #[test]
    #[contract("V8", "V10")]
    fn fnv_chains_equal_the_golden_vectors() {
        let sequence: Vec<u32> = (1000..1064).collect();
        let cases: [(&[u32], u64, &[u64]); 4] = [
            (
                &[7, 8, 9, 10, 11],
                2,
                &[587_823_138_564_396_042, 18_208_641_285_018_429_652],
            ),
            (
                &[u32::MAX, 0, 151_643, 7],
                2,
                &[94_450_425_202_322_666, 10_772_619_337_088_811_461],
            ),
            (&[0], 1, &[12_638_153_115_695_167_455]),
            (
                &sequence,
                16,
                &[
                    11_189_111_782_650_123_573,
                    13_911_601_164_354_950_954,
                    4_095_193_555_766_925_147,
                    966_674_435_487_858_628,
                ],
            ),
        ];
        for (tokens, size, hashes) in cases {
            let size = BlockSize::new(size).unwrap();
            let expected: Vec<_> = hashes.iter().copied().map(SequenceHash).collect();
            assert_eq!(HashScheme::Fnv1a.chain(None, tokens, size), expected);
        }
    }

    #[test]
    fn a_chain_extended_from_its_middle_equals_the_whole() {
        let tokens: Vec<u32> = (0..4096).map(|i| i * 7 + 1).collect();
        for scheme in [HashScheme::default(), HashScheme::Fnv1a] {
            for size in [1, 16, 200, 1024] {
                let size = BlockSize::new(size).unwrap();
                let whole = scheme.chain(None, &tokens, size);
                let half = whole.len() / 2;
                let rest = scheme.chain(
                    half.checked_sub(1).map(|i| whole[i]),
                    &tokens[half * size.len()..],
                    size,
                );
                assert_eq!(whole[half..], rest);
            }
        }
    }

    #[test]
    fn a_continued_prompt_has_the_chains_of_its_tokens() {
        let tokens: Vec<u32> = (0..5_000).map(|token| token * 7 + 1).collect();
        let prompt = |tokens: &[u32]| PromptBlocks::of_tokens(HashScheme::default(), tokens.into());
        let sizes = [1, 16, 200, 1024].map(|size| BlockSize::new(size).unwrap());
        for (computed, shared) in [(0, 999), (2, 0), (2, 15), (4, 999), (4, 1_000)] {
            let earlier = prompt(&tokens[..1_000]);
            for size in &sizes[..computed] {
                earlier.chain(*size);
            }
            let continued = |earlier: &PromptBlocks, shared: usize, end: usize| {
                let mut new = tokens[..shared].to_vec();
                new.extend_from_slice(&tokens[5_000 - end..]);
                PromptBlocks::of_continued_tokens(earlier, shared, new.into())
            };
            // The second one finds what the first one never used.
            let next = continued(&earlier, shared, 3_000);
            let last = continued(&next, shared.saturating_sub(10), 2_000);
            for size in sizes {
                for new in [&next, &last] {
                    let whole = prompt(new.tokens().expect("exact tokens")).chain(size);
                    assert_eq!(new.chain(size), whole, "{computed} {shared} {size:?}");
                }
            }
        }
    }

    #[test]
    fn a_prompt_given_by_hashes_has_blocks_of_their_size_only() {
        let (size, other) = (BlockSize::new(512).unwrap(), BlockSize::new(16).unwrap());
        let chain: Arc<[SequenceHash]> = [7, 9].map(SequenceHash).into();
        let prompt = PromptBlocks::of_chain(HashScheme::default(), size, Arc::clone(&chain));
        assert_eq!(prompt.chain(size), chain);
        assert!(prompt.chain(other).is_empty());
    }

    #[test]
    fn text_and_tokens_have_different_hashes() {
        let text = PromptBlocks::of_text(b"abcdefgh!".to_vec());
        assert_eq!(text.identity(), PromptIdentity::TextPrefix);
        assert_eq!(text.tokens(), None);
        assert_eq!(text.token_count(), 3);
        assert_eq!(text.chain(BlockSize::new(1).unwrap()).len(), 3);
        assert_eq!(text.chain(BlockSize::new(2).unwrap()).len(), 1);
    }

    #[test]
    fn a_longer_text_begins_with_the_blocks_of_a_shorter_one_up_to_the_first_difference() {
        let text: Vec<u8> = (0u8..=255).cycle().take(4000).collect();
        let chain = |text: &[u8], size: u64| {
            PromptBlocks::of_text(text.to_vec()).chain(BlockSize::new(size).unwrap())
        };
        for size in [1, 16, 64, 128] {
            let bytes = 4 * usize::try_from(size).unwrap();
            let whole = chain(&text, size);
            assert_eq!(whole.len(), 1000 / (bytes / 4));
            for shared in [0, bytes - 1, bytes, 5 * bytes, 5 * bytes + 1] {
                let mut other = text.clone();
                other[shared] ^= 1;
                let common = whole
                    .iter()
                    .zip(&*chain(&other, size))
                    .take_while(|(one, other)| one == other)
                    .count();
                assert_eq!(common, shared / bytes, "{size}, {shared}");
                let start = chain(&text[..shared / 4 * 4], size);
                assert_eq!(*start, whole[..shared / bytes]);
            }
        }
    }
}
