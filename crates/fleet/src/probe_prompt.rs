//! Prompts of our own requests to engines: how long they are, their words, and what a reply says of
//! the cache.

use kv_blocks::BlockSize;
use serde_json::Value;

/// Block size assumed if it is unknown, so that the prompt is long enough: the largest usual one,
/// in tokens.
const LARGEST_USUAL_BLOCK: u32 = 128;
/// Longest prompt sent, in words. A word has one token or a few.
const MOST_WORDS: u32 = 8_192;
/// Tokens per word in a small vocabulary.
const TOKENS_PER_WORD: u32 = 2;
/// Tokens that a template adds to a prompt, and those of the reply.
const MARGIN_TOKENS: u32 = 64;

/// Returns the number of words of the first prompt, and of the second one which continues it: two
/// and a half blocks, then one and a half more. Whatever the tokens of a word, each adds a whole
/// block. The error says why the engine takes no such prompts.
pub fn lengths(
    configured: Option<BlockSize>,
    reported: Option<BlockSize>,
    longest: Option<u32>,
) -> Result<(u32, u32), String> {
    let longest = longest.unwrap_or(u32::MAX);
    let max_words = (longest.saturating_sub(MARGIN_TOKENS) / TOKENS_PER_WORD).min(MOST_WORDS);
    let largest = max_words.saturating_sub(2) / 4;
    let known = configured
        .into_iter()
        .chain(reported)
        .map(BlockSize::tokens)
        .max();
    let block_tokens = match reported {
        Some(_) => known.unwrap_or(LARGEST_USUAL_BLOCK),
        None => known.unwrap_or(1).max(LARGEST_USUAL_BLOCK).min(largest),
    };
    if block_tokens > largest || block_tokens < known.unwrap_or(1) {
        let block = known.unwrap_or(block_tokens);
        return Err(format!(
            "blocks of {block} tokens are too long to try with prompts of up to {longest} tokens"
        ));
    }
    Ok((block_tokens * 5 / 2 + 1, block_tokens * 4 + 2))
}

/// Returns a unique word.
pub fn nonce() -> String {
    format!("{:016x}", runtime::random())
}

const WORDS: [&str; 12] = [
    "one", "two", "more", "less", "and", "then", "some", "time", "of", "day", "it", "is",
];

/// Returns `nonce` followed by words, `count` in all.
pub fn words(nonce: &str, count: u32) -> String {
    let rest = WORDS.iter().cycle().take(count.saturating_sub(1) as usize);
    std::iter::once(nonce)
        .chain(rest.copied())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the first `count` words of a text.
pub fn words_of(text: &str, count: u32) -> String {
    text.split(' ')
        .take(count as usize)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the cached tokens in a reply; `None`: its usage has no details.
pub fn cached_tokens(reply: &Value) -> Option<u64> {
    reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_prompt_continues_the_first_and_no_two_runs_share_one() {
        let text = words(&nonce(), 66);
        let first = words_of(&text, 41);
        assert!(
            text.starts_with(&first)
                && first.split(' ').count() == 41
                && text.split(' ').count() == 66
        );
        assert_ne!(words(&nonce(), 3), words(&nonce(), 3));
    }

    fn blocks(tokens: u64) -> Option<BlockSize> {
        BlockSize::new(tokens).ok()
    }

    #[test]
    fn prompts_have_full_blocks_of_the_largest_common_size_unless_the_engine_reports_its_own() {
        assert_eq!(lengths(blocks(16), blocks(32), None), Ok((81, 130)));
        assert_eq!(lengths(blocks(16), None, None), Ok((321, 514)));
        assert_eq!(lengths(blocks(256), None, None), Ok((641, 1026)));
        assert_eq!(lengths(None, None, None), Ok((321, 514)));
    }

    #[test]
    fn prompts_are_limited_by_the_model_length_and_not_below_the_known_block_size() {
        let (first, second) = lengths(blocks(16), None, Some(512)).expect("shorter ones fit");
        assert!(
            first < second && second >= 16 * 4 && second * TOKENS_PER_WORD + MARGIN_TOKENS <= 512
        );
        assert!(lengths(blocks(16), None, Some(128)).is_err());
        assert!(lengths(blocks(16), blocks(256), Some(1024)).is_err());
    }
}
