//! Expected blocks of slots.

use std::ops::Range;

use super::{Holders, MOST_SPANS, SpeculativeBlocks};
use crate::runs::TierSpan;

impl Holders {
    /// Removes the expected ones of some blocks of `slot`; returns whether there were any.
    /// `dropped` gets their stamps with the number of blocks.
    pub(crate) fn remove_speculative(
        &mut self,
        slot: u32,
        blocks: Range<u32>,
        dropped: &mut Vec<(u64, u32)>,
    ) -> bool {
        let Range { start, end } = blocks;
        if self.expected.is_empty() {
            return false;
        }
        let mut behind = Vec::new();
        let before = dropped.len();
        self.expected.retain_mut(|expected| {
            let span = expected.span;
            if span.slot != slot || span.end <= start || span.start >= end {
                return true;
            }
            dropped.push((
                expected.generation,
                span.end.min(end) - span.start.max(start),
            ));
            if span.end > end {
                behind.push(SpeculativeBlocks {
                    span: TierSpan { start: end, ..span },
                    ..*expected
                });
            }
            expected.span.end = start;
            span.start < start
        });
        // Expected spans that the area's header cannot count are dropped.
        for lost in behind.drain((MOST_SPANS - self.expected.len()).min(behind.len())..) {
            dropped.push((lost.generation, lost.span.end - lost.span.start));
        }
        self.expected.append(&mut behind);
        dropped.len() > before
    }

    /// Adds expected blocks, merged with an adjacent span of the same stamp. Returns how many
    /// blocks were added.
    pub(crate) fn add_speculative(&mut self, new: SpeculativeBlocks) -> u32 {
        let alike = |known: &&mut SpeculativeBlocks| {
            known.generation == new.generation && known.expires == new.expires
        };
        if let Some(known) = self
            .expected
            .iter_mut()
            .filter(alike)
            .find(|known| known.span.end == new.span.start)
        {
            known.span.end = new.span.end;
        } else if self.expected.len() < MOST_SPANS {
            self.expected.push(new);
        } else {
            return 0;
        }
        new.span.end - new.span.start
    }

    /// Removes all expected blocks.
    pub(crate) fn clear_speculative(&mut self, dropped: &mut Vec<(u64, u32)>) {
        dropped.extend(
            self.expected
                .drain(..)
                .map(|expected| (expected.generation, expected.span.end - expected.span.start)),
        );
    }
}
