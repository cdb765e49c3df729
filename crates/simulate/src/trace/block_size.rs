//! The tokens that one of a trace's ids stands for.

use kv_blocks::BlockSize;
use serde::{Deserialize, de::IgnoredAny};

/// Lines that are looked at.
const LINES: usize = 64;

/// Fewest ids of a prompt that say how long its blocks are.
const FEWEST_IDS: u32 = 4;

/// The fields of a line that matter here.
#[derive(Deserialize)]
struct LineLengths {
    input_length: u32,
    hash_ids: Vec<IgnoredAny>,
}

/// Returns the tokens of a block, a power of two, by the lengths of the first prompts: the longest of
/// them has one id for each block, with or without one for the last, partial block. `None` if no prompt
/// is long enough.
pub fn block_size_of(text: &str) -> Option<BlockSize> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let (ids, tokens) = lines
        .take(LINES)
        .filter_map(|line| serde_json::from_str::<LineLengths>(line).ok())
        .filter_map(|line| Some((u32::try_from(line.hash_ids.len()).ok()?, line.input_length)))
        .max()
        .filter(|(ids, _)| *ids >= FEWEST_IDS)?;
    let (ids, tokens) = (u64::from(ids), u64::from(tokens));
    // With four ids or more these bounds are closer than a factor of two.
    (0..=BlockSize::MAX.ilog2())
        .map(|power| 1_u64 << power)
        .find(|size| (ids - 1) * size < tokens && tokens < (ids + 1) * size)
        .and_then(|size| BlockSize::new(size).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens_of(prompts: &[(u32, u32)]) -> Option<u32> {
        let line = |(tokens, ids): &(u32, u32)| {
            let ids: Vec<u32> = (0..*ids).collect();
            format!(
                r#"{{"timestamp": 0, "input_length": {tokens}, "output_length": 1, "hash_ids": {ids:?}}}"#
            )
        };
        let lines: Vec<String> = prompts.iter().map(line).collect();
        block_size_of(&lines.join("\n")).map(BlockSize::tokens)
    }

    #[test]
    fn whole_and_partial_last_blocks_give_the_same_size() {
        for size in [16u32, 256, 512, 1_024] {
            for whole in [4, 5, 300] {
                for rest in [0, 1, size / 2, size - 1] {
                    let tokens = whole * size + rest;
                    let (partial, cut) = (tokens.div_ceil(size), whole);
                    assert_eq!(tokens_of(&[(tokens, partial)]), Some(size), "{tokens}");
                    assert_eq!(tokens_of(&[(tokens, cut)]), Some(size), "{tokens}");
                }
            }
        }
    }

    #[test]
    fn the_longest_prompt_decides() {
        assert_eq!(
            tokens_of(&[(700, 2), (9 * 256 - 1, 9), (300, 1)]),
            Some(256)
        );
    }

    #[test]
    fn prompts_that_are_short_or_have_other_ids_say_nothing() {
        assert_eq!(tokens_of(&[(700, 2), (1_500, 3)]), None);
        assert_eq!(tokens_of(&[(3_000, 8)]), None);
        assert_eq!(tokens_of(&[(0, 4)]), None);
        assert_eq!(block_size_of("no trace\n"), None);
        assert_eq!(block_size_of(""), None);
    }
}
