//! The current content in pieces, for a subscriber that builds another index from it.

use crate::BlockChange;

/// Blocks that a target holds, see [`crate::KvIndex::export`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedBlocks {
    /// Consecutive blocks in one tier, as if they entered it now.
    pub change: BlockChange,
    /// The blocks in front of them that no selected target holds, first one first, as if
    /// they entered that tier together. A consumer that stores whole chains needs them to insert
    /// `change`, and removes them afterwards; other consumers ignore them.
    pub lead: Vec<BlockChange>,
}

impl ExportedBlocks {
    pub(crate) fn blocks(&self) -> usize {
        self.change.hashes.len()
            + self
                .lead
                .iter()
                .map(|part| part.hashes.len())
                .sum::<usize>()
    }
}

/// Position of an export; the default is its beginning.
#[derive(Clone, Debug, Default)]
pub struct ExportCursor {
    /// Runs below this number are exported.
    next: u32,
    /// Exported runs, a bit each.
    exported: Vec<u64>,
    /// Stack of runs: the one being exported is last, behind those that wait for it. Never longer
    /// than the number of runs.
    waiting: Vec<u32>,
    /// The next block of the last of them.
    pub(crate) at: u32,
}

impl ExportCursor {
    /// Returns the run to continue with. A run comes after its parent; its number may be free or
    /// reused by now: runs created since the export began are not part of it.
    pub(crate) fn next(&mut self, runs: u32, parent: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        loop {
            let Some(&last) = self.waiting.last() else {
                while self.is_exported(self.next) {
                    self.next += 1;
                }
                if self.next >= runs {
                    return None;
                }
                self.await_run(self.next);
                continue;
            };
            match parent(last).filter(|parent| !self.is_exported(*parent)) {
                Some(parent) => self.await_run(parent),
                None => return Some(last),
            }
        }
    }

    /// Marks the current run as exported.
    pub(crate) fn end_run(&mut self) {
        let Some(run) = self.waiting.pop() else {
            return;
        };
        let (word, bit) = (run as usize / 64, run % 64);
        if self.exported.len() <= word {
            self.exported.resize(word + 1, 0);
        }
        self.exported[word] |= 1 << bit;
        self.at = 0;
        // Numbers are reused between two steps: a run that is on the stack twice is exported once.
        while self
            .waiting
            .last()
            .is_some_and(|run| self.is_exported(*run))
        {
            self.waiting.pop();
        }
    }

    fn await_run(&mut self, run: u32) {
        self.waiting.push(run);
        self.at = 0;
    }

    fn is_exported(&self, run: u32) -> bool {
        self.exported
            .get(run as usize / 64)
            .is_some_and(|word| word & (1 << (run % 64)) != 0)
    }
}
