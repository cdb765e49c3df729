//! The counts of a stream that carries several replies, each with counts of its own.

use std::collections::BTreeMap;

use dialect::Usage;

/// Most replies of a stream whose counts are kept: those of as many prompts and choices as requests
/// may have by default.
const MOST: usize = 2048 * 128;

/// The latest counts of each reply, and their sum.
#[derive(Debug, Default)]
pub(super) struct PartUsages {
    parts: BTreeMap<u32, PartCounts>,
    prompt: u64,
    output: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct PartCounts {
    prompt: u32,
    output: u32,
}

impl PartUsages {
    /// Records the counts of reply `number`, and returns those of all.
    pub(super) fn record(&mut self, number: u32, usage: Usage) -> Usage {
        if self.parts.len() < MOST || self.parts.contains_key(&number) {
            let counts = PartCounts {
                prompt: usage.prompt_tokens,
                output: usage.completion_tokens,
            };
            let before = self.parts.insert(number, counts).unwrap_or_default();
            self.prompt = self.prompt + u64::from(counts.prompt) - u64::from(before.prompt);
            self.output = self.output + u64::from(counts.output) - u64::from(before.output);
        }
        let counted = |sum: u64| u32::try_from(sum).unwrap_or(u32::MAX);
        Usage {
            prompt_tokens: counted(self.prompt),
            completion_tokens: counted(self.output),
            // Nothing compares those of several prompts.
            cached_tokens: usage.cached_tokens.filter(|_| self.parts.len() == 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn usage(prompt: u32, output: u32) -> Usage {
        Usage {
            prompt_tokens: prompt,
            completion_tokens: output,
            cached_tokens: Some(1),
        }
    }

    #[test]
    #[contract("S72")]
    fn the_latest_counts_of_all_replies_are_added() {
        let mut parts = PartUsages::default();
        let mut all = usage(0, 0);
        for (number, prompt, output, want) in [
            (0, 5, 1, (5, 1)),
            (1, 7, 1, (12, 2)),
            (0, 5, 2, (12, 3)),
            (1, 7, 9, (12, 11)),
            // A hostile engine counts backwards, and to the end.
            (1, 0, 0, (5, 2)),
            (u32::MAX, u32::MAX, u32::MAX, (u32::MAX, u32::MAX)),
            (u32::MAX, 1, 1, (6, 3)),
        ] {
            all = parts.record(number, usage(prompt, output));
            let found = (all.prompt_tokens, all.completion_tokens);
            assert_eq!(found, want, "{number} {prompt} {output}");
        }
        assert_eq!(all.cached_tokens, None);
        let alone = PartUsages::default().record(0, usage(5, 1));
        assert_eq!(alone, usage(5, 1));
    }

    #[test]
    #[contract("S72")]
    fn no_stream_makes_the_counts_outgrow_their_bound() {
        let mut parts = PartUsages::default();
        for number in 0..300_000 {
            parts.record(number, usage(1, 1));
        }
        assert_eq!(parts.parts.len(), MOST);
        let all = parts.record(0, usage(1, 2));
        let most = u32::try_from(MOST).expect("a count");
        assert_eq!((all.prompt_tokens, all.completion_tokens), (most, most + 1));
    }
}
