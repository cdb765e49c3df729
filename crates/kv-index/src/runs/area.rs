//! The area of a run: its holders when they do not fit in its head.
//!
//! Words: a header; the bits of slots that hold all of it on the device; groups of slots that hold
//! the same number of leading blocks there, each a number and bits; single device holders, two to a
//! word; spans in other tiers or behind a hole, one word each; expected spans, three words each.

use kv_blocks::Tier;

/// The tier number of expected entries; the four confirmed tiers are 0 to 3.
pub(crate) const EXPECTED: u32 = 4;

/// Content of an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AreaHeader {
    /// Words of slot bits, of the whole holders and of each group.
    pub(crate) width: usize,
    pub(crate) groups: usize,
    pub(crate) parts: usize,
    pub(crate) spans: usize,
    pub(crate) expected: usize,
}

impl AreaHeader {
    #[inline]
    pub(crate) fn decode(word: u64) -> Self {
        let field = |shift: u32, bits: u32| (word >> shift) as usize & ((1 << bits) - 1);
        Self {
            width: field(0, 13),
            groups: field(13, 10),
            parts: field(23, 13),
            spans: field(36, 14),
            expected: field(50, 14),
        }
    }

    pub(crate) fn encode(self) -> u64 {
        self.width as u64
            | (self.groups as u64) << 13
            | (self.parts as u64) << 23
            | (self.spans as u64) << 36
            | (self.expected as u64) << 50
    }

    /// Returns the start of the groups.
    #[inline]
    pub(crate) fn groups_at(self) -> usize {
        1 + self.width
    }

    #[inline]
    pub(crate) fn parts_at(self) -> usize {
        self.groups_at() + self.groups * (1 + self.width)
    }

    #[inline]
    pub(crate) fn spans_at(self) -> usize {
        self.parts_at() + self.parts.div_ceil(2)
    }

    #[inline]
    pub(crate) fn expected_at(self) -> usize {
        self.spans_at() + self.spans
    }

    #[inline]
    pub(crate) fn words(self) -> usize {
        self.expected_at() + 3 * self.expected
    }
}

/// Blocks `start..end` of a run, held by a slot in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TierSpan {
    pub(crate) slot: u32,
    pub(crate) tier: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl TierSpan {
    /// Returns the span of one block.
    pub(crate) fn of_block(slot: u32, tier: Tier, at: u32) -> Self {
        Self {
            slot,
            tier: tier_number(tier),
            start: at,
            end: at + 1,
        }
    }

    /// Returns the number of blocks.
    pub(crate) fn blocks(self) -> u32 {
        self.end - self.start
    }

    #[inline]
    pub(crate) fn decode(word: u64) -> Self {
        Self {
            slot: word as u32 & 0x3_ffff,
            // A torn read may give any value, and the reader counts by tier before it detects that.
            tier: ((word >> 18) as u32 & 7).min(EXPECTED),
            start: (word >> 21) as u32 & 0x3fff,
            end: (word >> 35) as u32 & 0x3fff,
        }
    }

    pub(crate) fn encode(self) -> u64 {
        u64::from(self.slot)
            | u64::from(self.tier) << 18
            | u64::from(self.start) << 21
            | u64::from(self.end) << 35
    }
}

/// Returns the number of a confirmed tier in runs.
pub(crate) fn tier_number(tier: Tier) -> u32 {
    [0, 1, 2, 3][tier.index()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_word_read_as_a_span_has_a_valid_tier() {
        for garbage in [u64::MAX, 5 << 18, 6 << 18, 7 << 18] {
            assert_eq!(TierSpan::decode(garbage).tier, EXPECTED);
        }
        assert_eq!(
            (0..=4)
                .map(|tier| TierSpan::decode(tier << 18).tier)
                .collect::<Vec<_>>(),
            [0, 1, 2, 3, 4]
        );
    }
}
