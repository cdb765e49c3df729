//! Restores runs from a snapshot.

use kv_blocks::SequenceHash;

use super::{FreedBlocks, RunNamespace, TreeWriter};
use crate::{
    lookup::SharedIndex,
    runs::TierSpan,
    table::{BlockRef, NoFreeLines},
};

impl TreeWriter {
    /// Returns the time of the last event for a run; a higher number is later.
    pub(crate) fn touched(&self, run: u32) -> u64 {
        self.nodes[run as usize].touched
    }

    /// Makes a run of all of `blocks`, at most as many as fit in a run, behind `last`; as if last
    /// touched at `touched`. `held` has stretches that do not overlap; those without room are
    /// removed from it. An error changes nothing.
    pub(crate) fn restore(
        &mut self,
        core: &SharedIndex,
        home: RunNamespace,
        last: Option<BlockRef>,
        blocks: &[SequenceHash],
        held: &mut Vec<TierSpan>,
        touched: u64,
    ) -> Result<u32, NoFreeLines> {
        let (BlockRef { run, .. }, made) =
            self.make_run(core, home, last, blocks, |holders, _| {
                held.retain(|span| holders.put(*span))
            })?;
        if (made as usize) < blocks.len() {
            // All or nothing: a child at its end would have no parent, and `held` would be too
            // long.
            self.cut(core, run, 0, made);
            return Err(NoFreeLines);
        }
        self.nodes[run as usize].touched = touched;
        self.clock = self.clock.max(touched);
        Ok(run)
    }

    /// Frees the blocks at the end of a run that have no holder and no child.
    pub(crate) fn release(
        &mut self,
        core: &SharedIndex,
        run: u32,
        gone: &mut dyn FnMut(FreedBlocks),
    ) {
        self.holders
            .read(&core.heads.get(&core.body, run), &core.body);
        self.trim(core, run, gone);
    }
}
