//! Holders as words: read from a run's head and area, and written into its area.

use super::{Holders, SpeculativeBlocks};
use crate::{
    arena::LineChunks,
    atomic::Ordering,
    runs::{
        AreaHeader, RunHead, TierSpan,
        head::{pack_part, unpack_part},
    },
};

impl Holders {
    /// Reads the holders of a run.
    pub(crate) fn read(&mut self, head: &RunHead, body: &LineChunks) {
        self.clear(head.blocks());
        if !head.has_area() {
            self.parts
                .extend((0..head.inline_holders()).map(|number| head.holder(number)));
            return;
        }
        let (line, words) = head.area();
        let area = body
            .words(line, words)
            .expect("the writer knows which areas there are");
        let word = |at: usize| area[at].load(Ordering::Relaxed);
        let title = AreaHeader::decode(word(0));
        self.width = title.width;
        self.whole.extend((1..=title.width).map(word));
        for group in 0..title.groups {
            let at = title.groups_at() + group * (1 + title.width);
            self.cuts.push(word(at) as u32);
            self.group_bits
                .extend((at + 1..=at + title.width).map(word));
        }
        for part in 0..title.parts {
            self.parts.push(unpack_part(
                (word(title.parts_at() + part / 2) >> (32 * (part % 2))) as u32,
            ));
        }
        self.spans
            .extend((title.spans_at()..title.expected_at()).map(|at| TierSpan::decode(word(at))));
        self.expected.extend((0..title.expected).map(|number| {
            let at = title.expected_at() + 3 * number;
            SpeculativeBlocks {
                span: TierSpan::decode(word(at)),
                expires: word(at + 1),
                generation: word(at + 2),
            }
        }));
    }

    /// Returns the header of the area.
    pub(crate) fn title(&self) -> AreaHeader {
        AreaHeader {
            width: self.width,
            groups: self.cuts.len(),
            parts: self.parts.len(),
            spans: self.spans.len(),
            expected: self.expected.len(),
        }
    }

    /// Returns the words of the area.
    pub(crate) fn area_words(&self) -> impl Iterator<Item = u64> + '_ {
        let groups = self.cuts.iter().enumerate().flat_map(|(group, cut)| {
            let bits = &self.group_bits[group * self.width..(group + 1) * self.width];
            std::iter::once(u64::from(*cut)).chain(bits.iter().copied())
        });
        let parts = self.parts.chunks(2).map(|pair| {
            let pack = |(slot, cut): (u32, u32)| u64::from(pack_part(slot, cut));
            pack(pair[0]) | pair.get(1).map_or(0, |second| pack(*second) << 32)
        });
        let expected = self
            .expected
            .iter()
            .flat_map(|e| [e.span.encode(), e.expires, e.generation]);
        std::iter::once(self.title().encode())
            .chain(self.whole.iter().copied())
            .chain(groups)
            .chain(parts)
            .chain(self.spans.iter().map(|span| span.encode()))
            .chain(expected)
    }
}
