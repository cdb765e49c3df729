//! Runs that changed after a save in progress had copied them.

/// Set of changed runs. Empty, and without cost, while no save is in progress.
#[derive(Debug, Default)]
pub(crate) struct ChangedRuns {
    /// Number of runs that the save has copied, from run 0 on.
    copied: u32,
    /// A bit for each copied run: whether it is in `runs`.
    marks: Vec<u64>,
    /// Bounded: each copied run once.
    runs: Vec<u32>,
}

impl ChangedRuns {
    /// Ends the record: no run counts as copied any more.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Records that the runs below `copied` are copied. The number only grows.
    pub(crate) fn note_copied(&mut self, copied: u32) {
        self.copied = copied;
        self.marks.resize(copied.div_ceil(64) as usize, 0);
    }

    /// Records a change of a run; runs that are not copied yet need no record.
    #[inline]
    pub(crate) fn mark(&mut self, run: u32) {
        if run < self.copied {
            self.mark_copied(run);
        }
    }

    /// Takes a changed run, which is about to be copied again.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let run = self.runs.pop()?;
        self.marks[run as usize / 64] &= !(1 << (run % 64));
        Some(run)
    }

    #[cold]
    fn mark_copied(&mut self, run: u32) {
        let (word, bit) = (&mut self.marks[run as usize / 64], 1 << (run % 64));
        if *word & bit == 0 {
            *word |= bit;
            self.runs.push(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ChangedRuns;

    #[test]
    fn a_copied_run_is_taken_once_however_often_it_changed() {
        let mut changed = ChangedRuns::default();
        changed.mark(3);
        assert_eq!(changed.take(), None, "no save is in progress");
        changed.note_copied(70);
        for run in [69, 3, 69, 70] {
            changed.mark(run);
        }
        assert_eq!([(); 3].map(|()| changed.take()), [Some(3), Some(69), None]);
        changed.mark(3);
        assert_eq!(changed.take(), Some(3));
    }
}
