//! Blocks that are only expected of a slot.

use super::TreeWriter;
use crate::{
    lookup::SharedIndex,
    runs::{EXPECTED, Holders, SpeculativeBlocks, TierSpan},
    table::NoFreeLines,
};

/// Blocks of a slot that are all in the same state.
struct AlikeBlocks {
    end: u32,
    /// Whether the slot is known to hold them.
    confirmed: bool,
    /// Until when they are expected; 0 if they are not.
    expires: u64,
}

impl AlikeBlocks {
    /// Returns the blocks of `span.slot` from `from` on, up to the next border in `span`.
    fn from(holders: &Holders, span: TierSpan, from: u32) -> Self {
        let (mut end, leading) = (span.end, holders.leading(span.slot));
        let mut confirmed = from < leading;
        if confirmed {
            end = end.min(leading);
        }
        for known in holders.spans.iter().filter(|known| known.slot == span.slot) {
            confirmed |= known.start <= from && from < known.end;
            end = border(*known, from, end);
        }
        let mut expires = 0;
        for known in &holders.expected {
            if known.span.slot != span.slot {
                continue;
            }
            if known.span.start <= from && from < known.span.end {
                expires = known.expires.max(expires);
            }
            end = border(known.span, from, end);
        }
        Self {
            end,
            confirmed,
            expires,
        }
    }
}

impl TreeWriter {
    /// Records blocks of a run as expected; those already expected, until the later of the two
    /// times. With `trusted`, blocks that the slot is known to hold are left alone. Returns how
    /// many blocks have the stamp now, and their first expiry;
    /// [`dropped`](super::ChangeEffects::dropped) gets the blocks that had other stamps before. An
    /// error changes nothing.
    pub(crate) fn add_speculative(
        &mut self,
        core: &SharedIndex,
        run: u32,
        new: SpeculativeBlocks,
        trusted: bool,
    ) -> Result<(u32, u64), NoFreeLines> {
        let mut head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        self.nodes.touch(run);
        let dropped = self.effects.dropped.len();
        let (mut entered, mut ends) = (0, u64::MAX);
        let mut start = new.span.start;
        while start < new.span.end {
            let alike = AlikeBlocks::from(&self.holders, new.span, start);
            let end = alike.end;
            if !(alike.confirmed && trusted) {
                self.holders.remove_speculative(
                    new.span.slot,
                    start..end,
                    &mut self.effects.dropped,
                );
                let expires = new.expires.max(alike.expires);
                let span = TierSpan {
                    start,
                    end,
                    ..new.span
                };
                entered += self.holders.add_speculative(SpeculativeBlocks {
                    span,
                    expires,
                    ..new
                });
                ends = ends.min(expires);
            }
            start = end;
        }
        if (self.effects.dropped.len() > dropped || entered > 0)
            && let Err(NoFreeLines) = self.rewrite(core, run, &mut head)
        {
            self.effects.dropped.truncate(dropped);
            return Err(NoFreeLines);
        }
        Ok((entered, ends))
    }

    /// Takes back up to `most` blocks of a run that have `generation` and are expired at `now`,
    /// from the end on. Returns the first expiry of the others, `None` if there are none.
    pub(crate) fn retract(
        &mut self,
        core: &SharedIndex,
        run: u32,
        (generation, now): (u64, u64),
        most: u32,
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
            .filter(|known| known.generation == generation)
            .copied()
            .collect();
        bear.sort_unstable_by_key(|known| std::cmp::Reverse(known.span.end));
        let mut ends = None;
        for SpeculativeBlocks { span, expires, .. } in bear {
            let count = if expires <= now {
                left.min(span.blocks())
            } else {
                0
            };
            left -= count;
            self.holders.remove_speculative(
                span.slot,
                span.end - count..span.end,
                &mut self.effects.dropped,
            );
            if count < span.blocks() {
                ends = Some(ends.map_or(expires, |end: u64| end.min(expires)));
            }
        }
        if left < most {
            // Fewer blocks take no more room than before.
            let _ = self.finish_removal(core, run, &mut head);
        }
        ends
    }

    /// Removes the blocks that `slot` holds of a run in `tiers`, [`EXPECTED`] for its expected
    /// ones. Returns how many blocks left each confirmed tier, and how many left the slot.
    pub(crate) fn clear(
        &mut self,
        core: &SharedIndex,
        run: u32,
        slot: u32,
        tiers: &[u32],
    ) -> ([u32; 4], u32) {
        let mut head = core.heads.get(&core.body, run);
        let blocks = head.blocks();
        if blocks == 0 {
            return ([0; 4], 0);
        }
        self.holders.read(&head, &core.body);
        let before = self.holders.block_count(slot);
        let (mut left, mut unexpected) = ([0; 4], false);
        for tier in tiers.iter().copied() {
            if tier == EXPECTED {
                let dropped = &mut self.effects.dropped;
                unexpected = self.holders.remove_speculative(slot, 0..blocks, dropped);
            } else {
                left[tier as usize] = self.holders.uncover(TierSpan {
                    slot,
                    tier,
                    start: 0,
                    end: blocks,
                });
            }
        }
        let at_all = before - self.holders.block_count(slot);
        if unexpected || left != [0; 4] {
            // Without the slot it takes no more room than before.
            let _ = self.finish_removal(core, run, &mut head);
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
