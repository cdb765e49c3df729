//! Removal of blocks from the end of runs.

use super::{
    FreedBlocks, TreeWriter,
    key_prefetch::KeyPrefetch,
    tree_writer::{hashes, lines_of},
};
use crate::{
    arena::LINE_WORDS,
    atomic::Ordering,
    lookup::SharedIndex,
    runs::{BlockRange, NO_RUN, RunHead},
    table::{BlockRef, TableEntry},
};

impl TreeWriter {
    /// Frees the blocks at the end of a run that have no holder and no child.
    pub(crate) fn release(&mut self, core: &SharedIndex, run: u32) {
        self.holders
            .read(&core.heads.get(&core.body, run), &core.body);
        self.trim(core, run);
    }

    /// Frees the blocks at the end of `run` that have no holder and no child, and those of the runs
    /// before it likewise. `holders` has the run's holders.
    pub(super) fn trim(&mut self, core: &SharedIndex, run: u32) {
        let mut run = run;
        loop {
            let head = core.heads.get(&core.body, run);
            let held = self.holders.reach();
            let keep = self.pin.keep(run, held.max(self.nodes.hung(run)));
            if keep >= head.blocks() {
                return;
            }
            let space = self.nodes.space(run);
            self.effects.freed.push(FreedBlocks {
                blocks: BlockRange {
                    run,
                    start: keep,
                    end: head.blocks(),
                },
                space: space.filter(|_| keep == 0),
            });
            self.cut(core, run, keep, head.blocks());
            if keep > 0 || head.parent() == NO_RUN {
                return;
            }
            run = head.parent();
            let parent = core.heads.get(&core.body, run);
            self.holders.read(&parent, &core.body);
        }
    }

    /// Shortens a run to `keep` blocks, of which those before `entered` are in the table. `holders`
    /// has its holders.
    pub(super) fn cut(&mut self, core: &SharedIndex, run: u32, keep: u32, entered: u32) {
        let mut head = core.heads.get(&core.body, run);
        let known = hashes(core, &head);
        let space = head.space();
        let leaving = &known[keep as usize..entered as usize];
        let mut keys = KeyPrefetch::new(core, leaving.len(), |number| {
            core.table
                .key(space, leaving[number].load(Ordering::Relaxed))
        });
        for number in 0..leaving.len() {
            let key = keys.next(core, number);
            let spot = BlockRef {
                run,
                at: keep + number as u32,
            };
            let entry = TableEntry { key, spot };
            core.table
                .remove(&mut self.fill, &core.body, &mut self.extents, entry);
        }
        self.blocks -= u64::from(entered - keep);
        self.unmark_ends(core, space, run, keep);
        if keep == 0 {
            let key = core.marks.key(space, known[0].load(Ordering::Relaxed));
            let spot = BlockRef { run, at: 0 };
            self.unmark(core, TableEntry { key, spot });
        }
        let lines = self.nodes.get(run).lines;
        core.heads.begin(&core.body, run);
        if keep == 0 {
            if head.has_area() {
                let (line, words) = head.area();
                self.extents.give(&core.body, line, lines_of(words));
            }
            core.heads.end(&core.body, run, &RunHead([0; LINE_WORDS]));
            self.extents.give(&core.body, head.hashes(), lines);
            self.nodes.end(run);
            self.leave_parent(core, &head);
            return;
        }
        let needed = keep.div_ceil(LINE_WORDS as u32);
        head.0[4] = known[keep as usize - 1].load(Ordering::Relaxed);
        head.set_blocks(keep);
        self.holders.set_blocks(keep);
        // Fewer blocks need no more words than before, so there is room.
        let _ = self.write_holders(core, &mut head);
        core.heads.end(&core.body, run, &head);
        self.extents
            .give(&core.body, head.hashes() + needed, lines - needed);
        self.nodes.set_lines(run, needed);
        self.nodes.set_unheld(run, self.holders.unheld());
    }

    fn leave_parent(&mut self, core: &SharedIndex, head: &RunHead) {
        if head.parent() == NO_RUN {
            return;
        }
        self.nodes.remove_child(head.parent(), head.attach());
        if self.nodes.get(head.parent()).children == 0 {
            self.say_children(core, head.parent(), false);
        }
    }
}
