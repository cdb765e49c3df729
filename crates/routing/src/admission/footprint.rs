//! The blocks of a request as the live set counts them: in spans of several blocks.
//!
//! A hash covers all blocks before it, so the hash at the end of a span stands for the whole span.
//! A prompt of 100,000 tokens is some 400 spans instead of 6,000 blocks.

use std::sync::Arc;

use kv_blocks::SequenceHash;

use crate::ledger::SequenceBlocks;

/// Tokens of a span, if a block has no more.
const SPAN_TOKENS: u64 = 256;

/// The blocks of a request, in spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    /// The last hash of each whole span.
    pub(crate) spans: SequenceBlocks,
    /// Blocks of a span.
    pub(crate) span: u64,
    /// Blocks behind the last whole span, and those without a hash: no other request shares them.
    pub(crate) rest: u64,
}

impl Footprint {
    /// Returns the footprint of a prompt with these blocks.
    pub(crate) fn of(blocks: &SequenceBlocks, prompt_tokens: u32) -> Self {
        let span = span_of(blocks.count(), prompt_tokens);
        let step = usize::try_from(span).unwrap_or(1).max(1);
        let chain = blocks.chain.as_deref().unwrap_or_default();
        let last_of_each = chain.iter().copied().skip(step - 1).step_by(step);
        let ends: Arc<[SequenceHash]> = last_of_each.collect();
        let whole = ends.len() as u64 * span;
        Self {
            spans: SequenceBlocks {
                chain: Some(ends),
                fingerprint: blocks.fingerprint,
                unshared: 0,
            },
            span,
            rest: blocks.count().saturating_sub(whole),
        }
    }

    /// Returns the number of all blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.whole_spans() as u64 * self.span + self.rest
    }

    /// Returns the number of whole spans.
    pub(crate) fn whole_spans(&self) -> usize {
        self.spans.chain.as_ref().map_or(0, |chain| chain.len())
    }

    /// Returns its last whole spans, the last one first.
    pub(crate) fn ends(&self) -> impl Iterator<Item = SequenceHash> + '_ {
        let chain = self.spans.chain.as_deref().unwrap_or_default();
        chain.iter().rev().copied()
    }
}

/// Returns the blocks of a span. The size of a block follows from the numbers of tokens and blocks,
/// so that a peer's request, which comes without it, is cut as this router's own.
fn span_of(blocks: u64, prompt_tokens: u32) -> u64 {
    let size = u64::from(prompt_tokens).div_ceil(blocks.max(1));
    SPAN_TOKENS / size.clamp(1, SPAN_TOKENS).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(count: u64) -> SequenceBlocks {
        SequenceBlocks {
            chain: Some((0..count).map(SequenceHash).collect()),
            fingerprint: 7,
            unshared: 0,
        }
    }

    #[test]
    fn a_span_has_256_tokens_or_one_block_and_the_rest_is_counted() {
        for (count, tokens, span, spans, rest) in [
            (100, 1600, 16, 6, 4),
            (100, 1590, 16, 6, 4),
            (100, 3200, 8, 12, 4),
            (100, 25_600, 1, 100, 0),
            (100, 102_400, 1, 100, 0),
            (100, 78_400, 1, 100, 0),
            (3, 40, 16, 0, 3),
            (0, 0, 256, 0, 0),
        ] {
            let footprint = Footprint::of(&blocks(count), tokens);
            let found = (footprint.span, footprint.whole_spans(), footprint.rest);
            assert_eq!(
                found,
                (span, spans, rest),
                "{count} blocks, {tokens} tokens"
            );
            assert_eq!(footprint.blocks(), count);
        }
    }

    #[test]
    fn a_longer_prompt_begins_with_the_spans_of_a_shorter_one() {
        let (short, long) = (
            Footprint::of(&blocks(70), 1120),
            Footprint::of(&blocks(99), 1570),
        );
        let ends = |footprint: &Footprint| footprint.spans.chain.clone().unwrap_or_default();
        assert_eq!(ends(&short)[..], ends(&long)[..4]);
        assert_eq!(long.ends().next(), Some(SequenceHash(95)));
    }
}
