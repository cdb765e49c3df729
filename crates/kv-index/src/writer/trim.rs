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
            let reach = self.holders.reach();
            let retained = self
                .pin
                .retained_blocks(run, reach.max(self.nodes.hung(run)));
            if retained >= head.blocks() {
                return;
            }
            let space = self.nodes.space(run);
            self.effects.freed.push(FreedBlocks {
                blocks: BlockRange {
                    run,
                    start: retained,
                    end: head.blocks(),
                },
                space: space.filter(|_| retained == 0),
            });
            self.cut(core, run, retained, head.blocks());
            if retained > 0 || head.parent() == NO_RUN {
                return;
            }
            run = head.parent();
            let parent = core.heads.get(&core.body, run);
            self.holders.read(&parent, &core.body);
        }
    }

    /// Shortens a run to `retained` blocks, of which those before `entered` are in the table.
    /// `holders` has its holders.
    pub(super) fn cut(&mut self, core: &SharedIndex, run: u32, retained: u32, entered: u32) {
        let mut head = core.heads.get(&core.body, run);
        let known = hashes(core, &head);
        let space = head.space();
        let removed = &known[retained as usize..entered as usize];
        let mut keys = KeyPrefetch::new(core, removed.len(), |number| {
            core.table
                .key(space, removed[number].load(Ordering::Relaxed))
        });
        for number in 0..removed.len() {
            let key = keys.next(core, number);
            let block_ref = BlockRef {
                run,
                at: retained + number as u32,
            };
            let entry = TableEntry { key, block_ref };
            core.table
                .remove(&mut self.fill, &core.body, &mut self.extents, entry);
        }
        self.blocks -= u64::from(entered - retained);
        self.unmark_ends(core, space, run, retained);
        if retained == 0 {
            let key = core.marks.key(space, known[0].load(Ordering::Relaxed));
            let block_ref = BlockRef { run, at: 0 };
            self.unmark(core, TableEntry { key, block_ref });
        }
        let lines = self.nodes.get(run).lines;
        self.changed.mark(run);
        core.heads.begin(&core.body, run);
        if retained == 0 {
            if head.has_area() {
                let (line, words) = head.area();
                self.extents.give(&core.body, line, lines_of(words));
            }
            core.heads.end(&core.body, run, &RunHead([0; LINE_WORDS]));
            self.extents.give(&core.body, head.hashes(), lines);
            self.nodes.end(run);
            self.detach_from_parent(core, &head);
            return;
        }
        let needed = retained.div_ceil(LINE_WORDS as u32);
        head.0[4] = known[retained as usize - 1].load(Ordering::Relaxed);
        head.set_blocks(retained);
        self.holders.set_blocks(retained);
        // Fewer blocks need no more words than before, so there is room.
        let _ = self.write_holders(core, &mut head);
        core.heads.end(&core.body, run, &head);
        self.extents
            .give(&core.body, head.hashes() + needed, lines - needed);
        self.nodes.set_lines(run, needed);
        self.nodes.set_unheld(run, self.holders.unheld());
    }

    fn detach_from_parent(&mut self, core: &SharedIndex, head: &RunHead) {
        if head.parent() == NO_RUN {
            return;
        }
        self.nodes.remove_child(head.parent(), head.attach());
        if self.nodes.get(head.parent()).children == 0 {
            self.set_has_children(core, head.parent(), false);
        }
    }
}
