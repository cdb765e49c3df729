//! Additions to and removals from a slot's holdings.

use super::{Holders, MOST_PARTS, MOST_SPANS};
use crate::runs::TierSpan;

impl Holders {
    /// Adds the blocks of a span; returns how many of them are new. Changes nothing if the area's
    /// header could not count a further stretch.
    pub(crate) fn cover(&mut self, span: TierSpan) -> u32 {
        let TierSpan {
            slot,
            tier,
            start,
            end,
        } = span;
        if self.spans.len() >= MOST_SPANS || self.parts.len() >= MOST_PARTS {
            return 0;
        }
        if tier == 0 && self.spans.is_empty() {
            let leading = self.leading(slot);
            if start <= leading {
                if end > leading {
                    self.set_leading(slot, end);
                }
                return end.saturating_sub(leading);
            }
        }
        let mut stretches = std::mem::take(&mut self.scratch);
        self.stretches(slot, tier, &mut stretches);
        let before: u32 = stretches.iter().map(|(from, to)| to - from).sum();
        let (mut from, mut to) = (start, end);
        stretches.retain(|stretch| {
            let apart = stretch.1 < from || stretch.0 > to;
            if !apart {
                (from, to) = (from.min(stretch.0), to.max(stretch.1));
            }
            apart
        });
        stretches.push((from, to));
        stretches.sort_unstable();
        let after = self.set_stretches(slot, tier, &stretches);
        self.scratch = stretches;
        after - before
    }

    /// Adds a stretch that meets no other of the slot in that tier; returns `false` without room.
    pub(crate) fn put(&mut self, span: TierSpan) -> bool {
        let TierSpan {
            slot,
            tier,
            start,
            end,
        } = span;
        if tier == 0 && start == 0 {
            return self.set_leading(slot, end);
        }
        let room = self.spans.len() < MOST_SPANS;
        if room {
            self.spans.push(span);
        }
        room
    }

    /// Removes the blocks of a span; returns how many blocks the slot lost: more than that span
    /// only if the area's header could not count the rest.
    pub(crate) fn uncover(&mut self, span: TierSpan) -> u32 {
        let TierSpan {
            slot,
            tier,
            start,
            end,
        } = span;
        if tier == 0 && self.spans.is_empty() {
            let leading = self.leading(slot);
            if start >= leading {
                return 0;
            }
            if end >= leading {
                return leading
                    - if self.set_leading(slot, start) {
                        start
                    } else {
                        0
                    };
            }
        }
        let mut stretches = std::mem::take(&mut self.scratch);
        self.stretches(slot, tier, &mut stretches);
        let before: u32 = stretches.iter().map(|(from, to)| to - from).sum();
        for number in 0..stretches.len() {
            let (from, to) = stretches[number];
            if from < start && to > end {
                stretches[number].1 = start;
                stretches.push((end, to));
            } else if from >= start && to <= end {
                stretches[number] = (0, 0);
            } else if from < start && to > start {
                stretches[number].1 = start;
            } else if from < end && to > end {
                stretches[number].0 = end;
            }
        }
        stretches.retain(|(from, to)| from < to);
        stretches.sort_unstable();
        let after = self.set_stretches(slot, tier, &stretches);
        self.scratch = stretches;
        before - after
    }

    /// Replaces the holdings of `slot` in `tier`; returns their blocks.
    fn set_stretches(&mut self, slot: u32, tier: u32, stretches: &[(u32, u32)]) -> u32 {
        self.spans
            .retain(|span| span.slot != slot || span.tier != tier);
        let mut total = 0;
        let mut rest = stretches;
        if tier == 0 {
            let leading = stretches
                .first()
                .filter(|(from, _)| *from == 0)
                .map_or(0, |(_, to)| *to);
            if self.set_leading(slot, leading) {
                total += leading;
            }
            rest = &stretches[usize::from(leading > 0)..];
        }
        for (start, end) in rest.iter().copied() {
            if self.spans.len() < MOST_SPANS {
                self.spans.push(TierSpan {
                    slot,
                    tier,
                    start,
                    end,
                });
                total += end - start;
            }
        }
        total
    }
}
