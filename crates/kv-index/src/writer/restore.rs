//! Restores runs from a snapshot.

use super::{ChainPart, TreeWriter};
use crate::{lookup::SharedIndex, runs::TierSpan, table::NoFreeLines};

impl TreeWriter {
    /// Makes a run of all blocks of `part`, at most as many as fit in a run; as if last touched at
    /// `touched`. `spans` has stretches that do not overlap; those without room are removed from it.
    /// An error changes nothing else.
    pub(crate) fn restore(
        &mut self,
        core: &SharedIndex,
        part: ChainPart<'_>,
        spans: &mut Vec<TierSpan>,
        touched: u64,
    ) -> Result<u32, NoFreeLines> {
        let made = self.make_run(core, part, |holders, _| {
            spans.retain(|span| holders.put(*span))
        })?;
        if (made.end as usize) < part.hashes.len() {
            // All or nothing: a child at its end would have no parent, and `spans` would be too
            // long.
            self.cut(core, made.run, 0, made.end);
            return Err(NoFreeLines);
        }
        self.nodes.set_touched(made.run, touched);
        Ok(made.run)
    }
}
