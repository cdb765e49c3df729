//! Changes of a run's holders.

use super::{ChangeEffects, TreeWriter, tree_writer::lines_of};
use crate::{
    atomic::Ordering,
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
    /// Records the blocks of a run that `span.slot` holds in `span.tier` (0 to 3), and in
    /// [`ChangeEffects::resident_ranges`] those that it held there before; with `confirmed`,
    /// expected blocks of the span become confirmed. An error changes nothing.
    pub(crate) fn cover(
        &mut self,
        core: &SharedIndex,
        run: u32,
        span: TierSpan,
        confirmed: bool,
    ) -> Result<CoverChange, NoFreeLines> {
        let mut head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        self.nodes.touch(run);
        let ChangeEffects {
            dropped,
            resident_ranges,
            ..
        } = &mut self.effects;
        self.holders.resident_ranges(span, resident_ranges);
        let known = resident_ranges[..] == [(span.start, span.end)];
        let dropped_before = dropped.len();
        let expected = confirmed
            && self
                .holders
                .remove_speculative(span.slot, span.start..span.end, dropped);
        if !expected && known {
            return Ok(CoverChange::default());
        }
        let before = self.holders.block_count(span.slot);
        let in_tier = self.holders.cover(span);
        let at_all = self.holders.block_count(span.slot) - before;
        if let Err(NoFreeLines) = self.rewrite(core, run, &mut head) {
            self.effects.dropped.truncate(dropped_before);
            return Err(NoFreeLines);
        }
        Ok(CoverChange { in_tier, at_all })
    }

    /// Records the blocks of a run that `span.slot` does not hold in `span.tier` any more; frees
    /// blocks without a holder. Without room for the rest, the slot loses all of the run in that
    /// tier.
    pub(crate) fn uncover(&mut self, core: &SharedIndex, run: u32, span: TierSpan) -> CoverChange {
        let mut head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        let before = self.holders.block_count(span.slot);
        let mut in_tier = self.holders.uncover(span);
        if in_tier == 0 {
            return CoverChange::default();
        }
        let mut at_all = before - self.holders.block_count(span.slot);
        if self.finish_removal(core, run, &mut head).is_err() {
            // A hole takes more words than a cut; no holding takes none.
            self.holders.read(&head, &core.body);
            in_tier = self.holders.uncover(TierSpan {
                start: 0,
                end: head.blocks(),
                ..span
            });
            at_all = before - self.holders.block_count(span.slot);
            let _ = self.finish_removal(core, run, &mut head);
        }
        CoverChange { in_tier, at_all }
    }

    /// Writes changed holders of a run after a removal, and frees blocks without a holder. An error
    /// means that there is no room for them; only `holders` has changed then.
    pub(super) fn finish_removal(
        &mut self,
        core: &SharedIndex,
        run: u32,
        head: &mut RunHead,
    ) -> Result<(), NoFreeLines> {
        let reach = self.holders.reach();
        // A run that is freed as a whole is not rewritten first.
        if reach > 0 || self.nodes.get(run).children > 0 || self.pin.is_in(run) {
            self.rewrite(core, run, head)?;
        }
        if reach < head.blocks() {
            self.trim(core, run);
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
        self.changed.mark(run);
        core.heads.begin(&core.body, run);
        let done = self.write_holders(core, head);
        core.heads.end(&core.body, run, head);
        if done.is_ok() {
            self.nodes.set_unheld(run, self.holders.unheld());
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
    pub(crate) fn shed(&mut self, core: &SharedIndex, run: u32, lost: impl FnMut(TierSpan)) {
        let head = core.heads.get(&core.body, run);
        self.holders.read(&head, &core.body);
        self.holders.each(lost);
        self.holders.clear_speculative(&mut self.effects.dropped);
        self.holders.clear(head.blocks());
        self.trim(core, run);
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
    pub(crate) fn holds(&mut self, core: &SharedIndex, block_ref: BlockRef, slot: u32) -> bool {
        self.holders
            .read(&core.heads.get(&core.body, block_ref.run), &core.body);
        self.holders.holds(slot, block_ref.at)
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
}
