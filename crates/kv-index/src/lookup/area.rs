//! The area of a run as a lookup reads it.
//!
//! The words may change during the read. The run's version in the end checks everything that was
//! read; here only ranges are limited.

use super::query::CreditSource;
use crate::{
    arena::LineChunks,
    atomic::{AtomicU64, Ordering},
    runs::{AreaHeader, RunHead, TierSpan, WHOLE, unpack_part},
};

/// The holders in an area that a lookup credits.
#[derive(Clone, Copy)]
pub(super) struct CreditedArea<'a> {
    words: &'a [AtomicU64],
    pub(super) header: AreaHeader,
    credit: CreditSource,
}

impl<'a> CreditedArea<'a> {
    /// Returns the area of a run; `None` after a torn read.
    #[inline]
    pub(super) fn of(body: &'a LineChunks, head: &RunHead, credit: CreditSource) -> Option<Self> {
        let (line, count) = head.area();
        let words = body.words(line, count)?;
        let header = AreaHeader::decode(words.first()?.load(Ordering::Relaxed));
        (header.words() == count).then_some(Self {
            words,
            header,
            credit,
        })
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    /// Returns whether announced blocks are credited.
    #[inline]
    pub(super) fn credits_announced(&self) -> bool {
        self.credit != CreditSource::Expected
    }

    /// Returns a word of the bits of slots that hold the whole run on the device.
    #[inline]
    pub(super) fn whole(&self, number: usize) -> u64 {
        self.word(1 + number)
    }

    /// Returns the number of leading blocks of a group.
    #[inline]
    pub(super) fn group_blocks(&self, group: usize) -> u32 {
        self.word(self.group_at(group)) as u32
    }

    /// Returns a word of the bits of a group's slots.
    #[inline]
    pub(super) fn group_bits(&self, group: usize, number: usize) -> u64 {
        self.word(self.group_at(group) + 1 + number)
    }

    #[inline]
    fn group_at(&self, group: usize) -> usize {
        self.header.groups_at() + group * (1 + self.header.width)
    }

    /// Returns a single device holder: its slot, and its leading blocks or [`WHOLE`].
    #[inline]
    pub(super) fn part(&self, part: usize) -> (u32, u32) {
        let word = self.word(self.header.parts_at() + part / 2);
        unpack_part((word >> (32 * (part % 2))) as u32)
    }

    /// Returns the credited leading blocks of a slot on the device, or [`WHOLE`].
    pub(super) fn leading(&self, slot: u32) -> u32 {
        if !self.credits_announced() {
            return 0;
        }
        let (number, bit) = (slot as usize / 64, 1 << (slot % 64));
        if number < self.header.width {
            if self.whole(number) & bit != 0 {
                return WHOLE;
            }
            for group in 0..self.header.groups {
                if self.group_bits(group, number) & bit != 0 {
                    return self.group_blocks(group);
                }
            }
        }
        (0..self.header.parts)
            .map(|part| self.part(part))
            .find(|(holder, _)| *holder == slot)
            .map_or(0, |(_, blocks)| blocks)
    }

    /// Loads the credited spans that are not expired at `now`, by slot and beginning.
    pub(super) fn load_spans(&self, now: u64, spans: &mut Vec<(TierSpan, u64)>) {
        let header = self.header;
        spans.clear();
        if self.credits_announced() {
            spans.extend(
                (header.spans_at()..header.expected_at())
                    .map(|at| (TierSpan::decode(self.word(at)), u64::MAX)),
            );
        }
        if self.credit != CreditSource::Announced {
            for number in 0..header.expected {
                let at = header.expected_at() + 3 * number;
                if self.word(at + 1) > now {
                    spans.push((TierSpan::decode(self.word(at)), self.word(at + 1)));
                }
            }
        }
        spans.sort_unstable();
    }
}
