//! The output of a simulated model.

use std::sync::Arc;

use kv_blocks::HashScheme;

/// The tokens of one reply: a function of the seed and the prompt's token ids only. A retried
/// request gets the same reply from any engine with the same seed.
#[derive(Clone, Debug)]
pub struct ReplyStream {
    alphabet: Arc<[u32]>,
    key: u64,
}

/// Separates reply keys from every other use of the same hash.
const PURPOSE: u64 = 0x72_65_70_6c_79;

impl ReplyStream {
    /// Returns the reply to `prompt`, drawn from `alphabet` (empty: token 0 only).
    pub fn new(seed: u64, prompt: &[u32], alphabet: Arc<[u32]>) -> Self {
        let key = HashScheme::Xxh3 { seed: PURPOSE }.block_hash(prompt).0;
        Self {
            alphabet,
            key: mixed(key ^ mixed(seed)),
        }
    }

    /// Returns the token at `index`.
    pub fn token(&self, index: u32) -> u32 {
        let pick = self.draw(u64::from(index) + 1);
        // The remainder is below the length, which is a usize.
        let position = usize::try_from(pick % self.alphabet.len().max(1) as u64).unwrap_or(0);
        self.alphabet.get(position).copied().unwrap_or(0)
    }

    /// Returns the length of a reply without a limit: 16 to 143 tokens.
    pub fn natural_len(&self) -> u32 {
        16 + u32::try_from(self.draw(0) % 128).unwrap_or(0)
    }

    fn draw(&self, index: u64) -> u64 {
        mixed(
            self.key
                .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        )
    }
}

/// Applies the finaliser of splitmix64: every input bit reaches every output bit.
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(seed: u64, prompt: &[u32]) -> Vec<u32> {
        let stream = ReplyStream::new(seed, prompt, (100..400).collect());
        (0..32).map(|index| stream.token(index)).collect()
    }

    #[test]
    fn the_reply_depends_only_on_seed_and_prompt() {
        assert_eq!(reply(1, &[1, 2, 3]), reply(1, &[1, 2, 3]));
        assert_ne!(reply(1, &[1, 2, 3]), reply(2, &[1, 2, 3]));
        assert_ne!(reply(1, &[1, 2, 3]), reply(1, &[1, 2, 4]));
        assert!(
            reply(1, &[1, 2, 3])
                .iter()
                .all(|token| (100..400).contains(token))
        );
    }
}
