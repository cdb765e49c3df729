//! Marks of blocks for searches.

use super::{TreeWriter, tree_writer::END_BYTES};
use crate::{
    lookup::SharedIndex,
    table::{BlockRef, NoFreeLines, NotInserted, TableEntry},
};

impl TreeWriter {
    /// Marks a block for searches.
    pub(super) fn mark(
        &mut self,
        core: &SharedIndex,
        entry: TableEntry,
    ) -> Result<(), NoFreeLines> {
        loop {
            let Self { marks, extents, .. } = self;
            match core
                .marks
                .insert(marks, &core.body, extents, entry, |_| false)
            {
                Err(NotInserted::NoRoom) => self.grow_body(core)?,
                _ => return Ok(()),
            }
        }
    }

    pub(super) fn unmark(&mut self, core: &SharedIndex, entry: TableEntry) {
        core.marks
            .remove(&mut self.marks, &core.body, &mut self.extents, entry);
    }

    /// Marks a block as the end of a prompt. The mark is only a hint, so it is skipped if there is
    /// no room.
    pub(super) fn mark_end(&mut self, core: &SharedIndex, space: u64, block_ref: BlockRef) {
        let BlockRef { run, at } = block_ref;
        if at == 0
            || self.ends.contains(&(run, at))
            || self.committed(core) + END_BYTES > self.limit
        {
            return;
        }
        let key = core.marks.key(space, self.hash(core, block_ref));
        if self.mark(core, TableEntry { key, block_ref }).is_ok() {
            self.ends.insert((run, at));
        }
    }

    /// Unmarks the ends of prompts among the blocks of a run from `from` on.
    pub(super) fn unmark_ends(&mut self, core: &SharedIndex, space: u64, run: u32, from: u32) {
        while let Some((run, at)) = self
            .ends
            .range((run, from)..=(run, u32::MAX))
            .next_back()
            .copied()
        {
            let block_ref = BlockRef { run, at };
            let key = core.marks.key(space, self.hash(core, block_ref));
            self.ends.remove(&(run, at));
            self.unmark(core, TableEntry { key, block_ref });
        }
    }
}
