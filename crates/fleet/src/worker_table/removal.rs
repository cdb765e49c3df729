//! Removal of workers that are no longer configured.

use std::{collections::HashSet, sync::Arc};

use kv_blocks::{Moment, WorkerId};

use super::WorkerTable;
use crate::{
    replacement, snapshot_build,
    worker_record::{WorkerAdmission, WorkerRecord},
};

impl WorkerTable {
    /// Returns whether a worker that is no longer configured gets no requests any more.
    pub(crate) fn is_closed(&self, id: WorkerId) -> bool {
        self.with(id, |entry| entry.admission == WorkerAdmission::Closed)
            .unwrap_or(true)
    }

    /// Begins the removal of these workers: see [`WorkerRecord::begin_removal`].
    pub(crate) fn remove_workers(&self, leaving: &HashSet<WorkerId>, until: Moment) {
        if leaving.is_empty() {
            return;
        }
        let mut entries = self.entries.lock();
        // All are marked before any is evaluated: a leaving worker replaces no other.
        entries
            .iter_mut()
            .filter(|entry| leaving.contains(&entry.view.id))
            .for_each(|entry| entry.begin_removal(until));
        self.close_no_longer_needed(&mut entries);
        self.snapshot
            .store(Arc::new(snapshot_build::build(&entries)));
    }

    /// Closes workers whose replacements are ready, or whose time limit is over.
    pub(crate) fn close_replaced(&self) {
        let mut entries = self.entries.lock();
        if self.close_no_longer_needed(&mut entries) {
            self.snapshot
                .store(Arc::new(snapshot_build::build(&entries)));
        }
    }

    /// Closes the workers that are no longer needed; returns whether any was closed.
    pub(super) fn close_no_longer_needed(&self, entries: &mut [WorkerRecord]) -> bool {
        let over = replacement::no_longer_needed(entries, self.clock.now());
        for at in &over {
            entries[*at].admission = WorkerAdmission::Closed;
            self.reconcile(&mut entries[*at]);
        }
        !over.is_empty()
    }
}
