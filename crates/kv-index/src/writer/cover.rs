//! Changes of a run's holders.

use kv_blocks::SequenceHash;

use super::{FreedBlocks, TreeWriter, runs::lines_of};
use crate::{
    atomic::{AtomicU64, Ordering},
    lookup::SharedIndex,
    runs::{RunHead, TierSpan},
    table::{BlockRef, NoFreeLines},
};

/// Effect of a change, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoverChange {
    /// Blocks that entered or left the tier.
    pub(crate) in_tier: u32,
    /// Blocks that entered or left the target: held in no tier before or after.
    pub(crate) at_all: u32,
}

impl TreeWriter {
    /// Records that `slot` holds blocks `start..end` of a run in `tier` (0 to 3). `held` gets the
    /// ranges that it held there before; with `confirmed`, expected blocks of the range become
    /// confirmed. An error changes nothing.
    pub(crate) fn cover(
        &mut self,
        core: &SharedIndex,
        run: u32,
        span: TierSpan,
        confirmed: bool,
        held: &mut Vec<(u32, u32)>,
    ) -> Result<CoverChange, NoFreeLines> {
        let mut head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        self.touch(run);
        let TierSpan {
            slot,
            tier,
            start,
            end,
        } = span;
        self.holders.held(slot, tier, start, end, held);
        let dropped = self.dropped.len();
        let expected = confirmed
            && self
                .holders
                .remove_speculative(slot, start, end, &mut self.dropped);
        if !expected && held[..] == [(start, end)] {
            return Ok(CoverChange::default());
        }
        let before = self.holders.any_held(slot);
        let in_tier = self.holders.cover(slot, tier, start, end);
        let at_all = self.holders.any_held(slot) - before;
        if let Err(NoFreeLines) = self.rewrite(core, run, &mut head) {
            self.dropped.truncate(dropped);
            return Err(NoFreeLines);
        }
        Ok(CoverChange { in_tier, at_all })
    }

    /// Records that `slot` does not hold blocks `start..end` of a run in `tier` any more; frees
    /// blocks without a holder. Without room for the rest, the slot loses all of the run in that
    /// tier.
    pub(crate) fn uncover(
        &mut self,
        core: &SharedIndex,
        run: u32,
        span: TierSpan,
        gone: &mut dyn FnMut(FreedBlocks),
    ) -> CoverChange {
        let mut head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        let TierSpan {
            slot,
            tier,
            start,
            end,
        } = span;
        let before = self.holders.any_held(slot);
        let mut in_tier = self.holders.uncover(slot, tier, start, end);
        if in_tier == 0 {
            return CoverChange::default();
        }
        let mut at_all = before - self.holders.any_held(slot);
        if self.settle(core, run, &mut head, gone).is_err() {
            // A hole takes more words than a cut; no holding takes none.
            self.holders.read(&head, &core.body);
            in_tier = self.holders.uncover(slot, tier, 0, head.blocks());
            at_all = before - self.holders.any_held(slot);
            let _ = self.settle(core, run, &mut head, gone);
        }
        CoverChange { in_tier, at_all }
    }

    /// Writes changed holders of a run after a removal, and frees blocks without a holder. An error
    /// means that there is no room for them; only `holders` has changed then.
    pub(super) fn settle(
        &mut self,
        core: &SharedIndex,
        run: u32,
        head: &mut RunHead,
        gone: &mut dyn FnMut(FreedBlocks),
    ) -> Result<(), NoFreeLines> {
        let reach = self.holders.reach();
        // A run that is freed as a whole is not rewritten first.
        if reach > 0 || self.nodes[run as usize].children > 0 || self.is_pinned(run) {
            self.rewrite(core, run, head)?;
        }
        if reach < head.blocks() {
            self.trim(core, run, gone);
        }
        Ok(())
    }

    /// Writes the holders of a run.
    pub(super) fn rewrite(
        &mut self,
        core: &SharedIndex,
        run: u32,
        head: &mut RunHead,
    ) -> Result<(), NoFreeLines> {
        core.heads.begin(&core.body, run);
        let done = self.write_holders(core, head);
        core.heads.end(&core.body, run, head);
        if done.is_ok() {
            self.note_unheld(run, self.holders.unheld());
        }
        done
    }

    /// Writes `holders` to a head, and to its area if they need one. An error leaves the head as
    /// before.
    pub(super) fn write_holders(
        &mut self,
        core: &SharedIndex,
        head: &mut RunHead,
    ) -> Result<(), NoFreeLines> {
        let old = head.has_area().then(|| head.area());
        if let Some((named, count)) = self.holders.inline() {
            head.set_inline(&named[..count]);
            if let Some((line, words)) = old {
                self.extents.give(&core.body, line, lines_of(words));
            }
            return Ok(());
        }
        let words = self.holders.title().words();
        let lines = lines_of(words);
        let line = match old {
            Some((line, before)) if lines_of(before) >= lines => {
                self.extents
                    .give(&core.body, line + lines, lines_of(before) - lines);
                line
            }
            _ => {
                let line = self.take(core, lines)?;
                if let Some((old, before)) = old {
                    self.extents.give(&core.body, old, lines_of(before));
                }
                line
            }
        };
        let area = core
            .body
            .words(line, words)
            .expect("just taken, or known to be there");
        for (word, new) in area.iter().zip(self.holders.area_words()) {
            word.store(new, Ordering::Relaxed);
        }
        head.set_area(line, words);
        Ok(())
    }

    /// Sheds a run: removes all its holders. `lost` gets the holdings.
    pub(crate) fn shed(
        &mut self,
        core: &SharedIndex,
        run: u32,
        lost: &mut dyn FnMut(TierSpan),
        gone: &mut dyn FnMut(FreedBlocks),
    ) {
        let head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        self.holders.each(&mut *lost);
        self.holders.clear_speculative(&mut self.dropped);
        self.holders.clear(head.blocks());
        self.trim(core, run, gone);
    }

    /// Calls back with every confirmed stretch of a run.
    pub(crate) fn each_holder(
        &mut self,
        core: &SharedIndex,
        run: u32,
        visit: impl FnMut(TierSpan),
    ) {
        self.holders
            .read(&core.heads.get(&core.body, run), &core.body);
        self.holders.each(visit);
    }

    /// Returns whether `slot` holds a block in any tier.
    pub(crate) fn holds(&mut self, core: &SharedIndex, spot: BlockRef, slot: u32) -> bool {
        self.holders
            .read(&core.heads.get(&core.body, spot.run), &core.body);
        self.holders.holds(slot, spot.at)
    }

    /// Calls back with the stretches that `slot` holds of a run, in any tier.
    pub(crate) fn stretches(
        &mut self,
        core: &SharedIndex,
        run: u32,
        slot: u32,
        mut visit: impl FnMut(TierSpan),
    ) {
        self.each_holder(core, run, |span| {
            if span.slot == slot {
                visit(span);
            }
        });
    }

    /// Returns how many of `rest`, which begins with the block `first`, are its neighbours in the
    /// run, going up or down; and the last of them.
    pub(crate) fn stretch(
        &self,
        core: &SharedIndex,
        first: BlockRef,
        rest: &[SequenceHash],
    ) -> (BlockRef, usize) {
        let head = core.heads.get(&core.body, first.run);
        let known = super::hashes(core, &head);
        let (before, behind) = (&known[..first.at as usize], &known[first.at as usize + 1..]);
        let same =
            |(word, hash): &(&AtomicU64, &SequenceHash)| word.load(Ordering::Relaxed) == hash.0;
        // Engines free the ends of sequences first.
        let down = before.iter().rev().zip(&rest[1..]).take_while(same).count();
        if down > 0 {
            return (
                BlockRef {
                    at: first.at - down as u32,
                    ..first
                },
                down + 1,
            );
        }
        let up = behind.iter().zip(&rest[1..]).take_while(same).count();
        (
            BlockRef {
                at: first.at + up as u32,
                ..first
            },
            up + 1,
        )
    }
}
