//! Blocks that are only expected of a slot.

use super::{FreedBlocks, TreeWriter};
use crate::{
    lookup::SharedIndex,
    runs::{SpeculativeBlocks, TierSpan},
    table::NoFreeLines,
};

impl TreeWriter {
    /// Records that `span.slot` is expected to hold blocks `span.start..span.end` of a run until
    /// `expires`; for blocks already expected, until the later of the two. With `trusted`, blocks
    /// that it is known to hold are left alone. Returns how many blocks have `stamp` now, and their
    /// first expiry; `dropped` gets the blocks that had other stamps before. An error changes
    /// nothing.
    pub(crate) fn add_speculative(
        &mut self,
        core: &SharedIndex,
        run: u32,
        span: TierSpan,
        expires: u64,
        stamp: u64,
        trusted: bool,
    ) -> Result<(u32, u64), NoFreeLines> {
        let mut head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        self.touch(run);
        let TierSpan {
            slot, start, end, ..
        } = span;
        let dropped = self.dropped.len();
        let (mut entered, mut ends) = (0, u64::MAX);
        let mut from = start;
        while from < end {
            // Up to the next border all blocks are in the same state.
            let mut to = end;
            let mut confirmed = from < self.holders.leading(slot);
            if confirmed {
                to = to.min(self.holders.leading(slot));
            }
            for known in self.holders.spans.iter().filter(|known| known.slot == slot) {
                confirmed |= known.start <= from && from < known.end;
                to = border(*known, from, to);
            }
            let mut until = expires;
            for known in self
                .holders
                .expected
                .iter()
                .filter(|known| known.span.slot == slot)
            {
                if known.span.start <= from && from < known.span.end {
                    until = until.max(known.expires);
                }
                to = border(known.span, from, to);
            }
            if !(confirmed && trusted) {
                self.holders
                    .remove_speculative(slot, from, to, &mut self.dropped);
                let new = SpeculativeBlocks {
                    span: TierSpan {
                        start: from,
                        end: to,
                        ..span
                    },
                    expires: until,
                    stamp,
                };
                entered += self.holders.add_speculative(new);
                ends = ends.min(until);
            }
            from = to;
        }
        if (self.dropped.len() > dropped || entered > 0)
            && let Err(NoFreeLines) = self.rewrite(core, run, &mut head)
        {
            self.dropped.truncate(dropped);
            return Err(NoFreeLines);
        }
        Ok((entered, ends))
    }

    /// Takes back up to `most` blocks of a run that have `stamp` and are expired at `now`, from the
    /// end on. Returns the first expiry of the others, `None` if there are none.
    pub(crate) fn retract(
        &mut self,
        core: &SharedIndex,
        run: u32,
        (stamp, now): (u64, u64),
        most: u32,
        gone: &mut dyn FnMut(FreedBlocks),
    ) -> Option<u64> {
        let mut head = core.heads.get(&core.body, run);
        if head.blocks() == 0 {
            return None;
        }
        self.holders.read(&head, &core.body);
        let mut left = most;
        let mut bear: Vec<_> = self
            .holders
            .expected
            .iter()
            .filter(|known| known.stamp == stamp)
            .copied()
            .collect();
        bear.sort_unstable_by_key(|known| std::cmp::Reverse(known.span.end));
        let mut ends = None;
        for SpeculativeBlocks { span, expires, .. } in bear {
            let count = if expires <= now {
                left.min(span.end - span.start)
            } else {
                0
            };
            left -= count;
            self.holders.remove_speculative(
                span.slot,
                span.end - count,
                span.end,
                &mut self.dropped,
            );
            if count < span.end - span.start {
                ends = Some(ends.map_or(expires, |end: u64| end.min(expires)));
            }
        }
        if left < most {
            // Fewer blocks take no more room than before.
            let _ = self.settle(core, run, &mut head, gone);
        }
        ends
    }

    /// Removes the blocks that `slot` holds of a run: in `tier` only, or in all tiers; with
    /// `expected` also its expected blocks. Returns how many blocks left each tier, and how many
    /// left the slot.
    pub(crate) fn clear(
        &mut self,
        core: &SharedIndex,
        run: u32,
        slot: u32,
        tiers: &[u32],
        expected: bool,
        gone: &mut dyn FnMut(FreedBlocks),
    ) -> ([u32; 4], u32) {
        let mut head = core.heads.get(&core.body, run);
        let blocks = head.blocks();
        if blocks == 0 {
            return ([0; 4], 0);
        }
        self.holders.read(&head, &core.body);
        let before = self.holders.any_held(slot);
        let mut left = [0; 4];
        for tier in tiers {
            left[*tier as usize] = self.holders.uncover(slot, *tier, 0, blocks);
        }
        let at_all = before - self.holders.any_held(slot);
        let unexpected = expected
            && self
                .holders
                .remove_speculative(slot, 0, blocks, &mut self.dropped);
        if unexpected || left != [0; 4] {
            // Without the slot it takes no more room than before.
            let _ = self.settle(core, run, &mut head, gone);
        }
        (left, at_all)
    }
}

/// Returns the first border of `span` behind `from`, if it is before `to`.
fn border(span: TierSpan, from: u32, to: u32) -> u32 {
    [span.start, span.end]
        .into_iter()
        .filter(|border| *border > from)
        .fold(to, u32::min)
}
