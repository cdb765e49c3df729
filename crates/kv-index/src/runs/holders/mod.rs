//! The holders of one run, unpacked, for the writer to change.

mod area;
mod cover;
mod leading;
mod speculative;

use super::{area::TierSpan, head::WHOLE};

/// Number of single holders with the same blocks from which they share bits.
const GROUP_FROM: usize = 8;
/// Maximum of each field of an area's header; holdings beyond it are not credited.
const MOST_PARTS: usize = (1 << 13) - 1;
const MOST_GROUPS: usize = (1 << 10) - 1;
const MOST_SPANS: usize = (1 << 14) - 1;

/// Expected blocks, until `expires`; `generation` identifies their speculative entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpeculativeBlocks {
    pub(crate) span: TierSpan,
    pub(crate) expires: u64,
    pub(crate) generation: u64,
}

/// A run's holders. Reused from run to run to reuse its buffers.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Blocks of the run.
    blocks: u32,
    width: usize,
    /// Bits of slots that hold the whole run on the device; `width` words.
    whole: Vec<u64>,
    /// Leading blocks of each group, and its bits, `width` words each.
    cuts: Vec<u32>,
    group_bits: Vec<u64>,
    /// Single device holders: slot, and leading blocks or [`WHOLE`].
    parts: Vec<(u32, u32)>,
    pub(crate) spans: Vec<TierSpan>,
    pub(crate) expected: Vec<SpeculativeBlocks>,
    scratch: Vec<(u32, u32)>,
}

impl Holders {
    /// Removes all holders, for a run of `blocks` blocks.
    pub(crate) fn clear(&mut self, blocks: u32) {
        self.blocks = blocks;
        self.width = 0;
        self.whole.clear();
        self.cuts.clear();
        self.group_bits.clear();
        self.parts.clear();
        self.spans.clear();
        self.expected.clear();
    }

    /// Returns the end of the last held or expected block.
    pub(crate) fn reach(&self) -> u32 {
        if self.whole.iter().any(|word| *word != 0) {
            return self.blocks;
        }
        let parts = self.parts.iter().map(|(_, cut)| (*cut).min(self.blocks));
        let spans = self.spans.iter().map(|span| span.end);
        let expected = self.expected.iter().map(|expected| expected.span.end);
        parts
            .chain(self.cuts.iter().copied())
            .chain(spans)
            .chain(expected)
            .max()
            .unwrap_or(0)
    }

    /// Returns the blocks of the run without a holder; some may be expected, others only precede
    /// held blocks.
    pub(crate) fn unheld(&self) -> u32 {
        if self.whole.iter().any(|word| *word != 0) {
            return 0;
        }
        let leading = self
            .parts
            .iter()
            .map(|(_, cut)| (*cut).min(self.blocks))
            .chain(self.cuts.iter().copied());
        let mut end = leading.max().unwrap_or(0);
        let mut unheld = self.blocks - end;
        if !self.spans.is_empty() && unheld > 0 {
            let mut spans: Vec<_> = self
                .spans
                .iter()
                .map(|span| (span.start, span.end))
                .collect();
            spans.sort_unstable();
            for (from, to) in spans {
                unheld -= to.saturating_sub(from.max(end));
                end = end.max(to);
            }
        }
        unheld
    }

    /// Sets the length of the run to `blocks` blocks; longer holdings end there.
    pub(crate) fn set_blocks(&mut self, blocks: u32) {
        self.blocks = blocks;
        for (_, cut) in self.parts.iter_mut().filter(|(_, cut)| *cut >= blocks) {
            *cut = WHOLE;
        }
        while let Some(group) = self.cuts.iter().position(|cut| *cut >= blocks) {
            for word in 0..self.width {
                self.whole[word] |= self.group_bits[group * self.width + word];
            }
            self.remove_group(group);
        }
        self.spans.retain_mut(|span| shorten(span, blocks));
        self.expected
            .retain_mut(|expected| shorten(&mut expected.span, blocks));
    }

    /// Returns the leading blocks that `slot` holds on the device.
    pub(crate) fn leading(&self, slot: u32) -> u32 {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if word < self.width {
            if self.whole[word] & bit != 0 {
                return self.blocks;
            }
            if let Some(group) = (0..self.cuts.len())
                .find(|group| self.group_bits[group * self.width + word] & bit != 0)
            {
                return self.cuts[group];
            }
        }
        let part = self.parts.iter().find(|(holder, _)| *holder == slot);
        part.map_or(0, |(_, cut)| (*cut).min(self.blocks))
    }

    /// Returns every stretch of `slot` in `tier`, in order.
    fn stretches(&self, slot: u32, tier: u32, out: &mut Vec<(u32, u32)>) {
        out.clear();
        if tier == 0 {
            let leading = self.leading(slot);
            if leading > 0 {
                out.push((0, leading));
            }
        }
        if !self.spans.is_empty() {
            out.extend(
                self.spans
                    .iter()
                    .filter(|s| s.slot == slot && s.tier == tier)
                    .map(|s| (s.start, s.end)),
            );
            out.sort_unstable();
        }
    }

    /// Returns the parts of a span that its slot holds in its tier, in order.
    pub(crate) fn resident_ranges(&self, span: TierSpan, out: &mut Vec<(u32, u32)>) {
        self.stretches(span.slot, span.tier, out);
        out.retain_mut(|stretch| {
            *stretch = (stretch.0.max(span.start), stretch.1.min(span.end));
            stretch.0 < stretch.1
        });
    }

    /// Returns whether `slot` holds block `at` in any tier.
    pub(crate) fn holds(&self, slot: u32, at: u32) -> bool {
        let spans = || {
            self.spans
                .iter()
                .any(|s| s.slot == slot && s.start <= at && at < s.end)
        };
        at < self.leading(slot) || spans()
    }

    /// Returns how many blocks `slot` holds in any tier.
    pub(crate) fn block_count(&self, slot: u32) -> u32 {
        let leading = self.leading(slot);
        if self.spans.is_empty() {
            return leading;
        }
        let mut stretches: Vec<_> = self
            .spans
            .iter()
            .filter(|s| s.slot == slot)
            .map(|s| (s.start, s.end))
            .collect();
        stretches.sort_unstable();
        let (mut total, mut end) = (leading, leading);
        for (from, to) in stretches {
            total += to.saturating_sub(from.max(end));
            end = end.max(to);
        }
        total
    }

    /// Calls back with every confirmed stretch: slot, tier, first block, end.
    pub(crate) fn each(&self, mut visit: impl FnMut(TierSpan)) {
        each_bit(&self.whole, |slot| {
            visit(TierSpan {
                slot,
                tier: 0,
                start: 0,
                end: self.blocks,
            })
        });
        for (group, cut) in self.cuts.iter().enumerate() {
            each_bit(
                &self.group_bits[group * self.width..(group + 1) * self.width],
                |slot| {
                    visit(TierSpan {
                        slot,
                        tier: 0,
                        start: 0,
                        end: *cut,
                    });
                },
            );
        }
        for (slot, cut) in &self.parts {
            visit(TierSpan {
                slot: *slot,
                tier: 0,
                start: 0,
                end: (*cut).min(self.blocks),
            });
        }
        self.spans.iter().copied().for_each(visit);
    }
}

/// Ends a stretch at the new end of its run; returns whether anything is left of it.
fn shorten(span: &mut TierSpan, blocks: u32) -> bool {
    span.end = span.end.min(blocks);
    span.start < span.end
}

/// Calls back with the number of every set bit.
pub(crate) fn each_bit(words: &[u64], mut visit: impl FnMut(u32)) {
    for (number, word) in words.iter().enumerate() {
        let mut left = *word;
        while left != 0 {
            visit(number as u32 * 64 + left.trailing_zeros());
            left &= left - 1;
        }
    }
}
