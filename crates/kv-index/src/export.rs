//! The standing state in pieces, for those who build up another index from it.

use crate::BlockChange;

/// Blocks that a target holds, see [`crate::KvIndex::standing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedBlocks {
    /// Consecutive blocks in one tier, as if they came into it now.
    pub change: BlockChange,
    /// What is in front of them and held by nobody, first one first, as if it came into that tier with them. Whoever keeps
    /// whole chains needs it to place `held`, and takes it back then; for others it means nothing.
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

/// How far a walk over the standing state has come; the default is its beginning.
#[derive(Clone, Debug, Default)]
pub struct ExportCursor {
    /// Runs below are told.
    next: u32,
    /// Which runs are told, a bit each.
    told: Vec<u64>,
    /// The run that is being told comes last, behind those that wait for it. Never more than there are runs.
    waiting: Vec<u32>,
    /// The next block of the last of them.
    pub(crate) at: u32,
}

impl ExportCursor {
    /// The run to go on with. A run comes after its parent; its number may be free, or somebody else's by now: what came
    /// since the walk began is not its business.
    pub(crate) fn next(&mut self, runs: u32, parent: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        loop {
            let Some(&last) = self.waiting.last() else {
                while self.is_told(self.next) {
                    self.next += 1;
                }
                if self.next >= runs {
                    return None;
                }
                self.await_run(self.next);
                continue;
            };
            match parent(last).filter(|parent| !self.is_told(*parent)) {
                Some(parent) => self.await_run(parent),
                None => return Some(last),
            }
        }
    }

    /// The run that is being told is told.
    pub(crate) fn end_run(&mut self) {
        let Some(run) = self.waiting.pop() else {
            return;
        };
        let (word, bit) = (run as usize / 64, run % 64);
        if self.told.len() <= word {
            self.told.resize(word + 1, 0);
        }
        self.told[word] |= 1 << bit;
        self.at = 0;
        // Numbers change hands between two steps: one that waits twice is told once.
        while self.waiting.last().is_some_and(|run| self.is_told(*run)) {
            self.waiting.pop();
        }
    }

    fn await_run(&mut self, run: u32) {
        self.waiting.push(run);
        self.at = 0;
    }

    fn is_told(&self, run: u32) -> bool {
        self.told
            .get(run as usize / 64)
            .is_some_and(|word| word & (1 << (run % 64)) != 0)
    }
}
