//! Removal of workers that are no longer configured.

use std::collections::BTreeSet;

use kv_blocks::{Moment, WorkerId};

use super::WorkerTable;
use crate::{
    replacement,
    worker_machine::{WorkerAdmission, WorkerEvent},
    worker_record::WorkerRecord,
};

impl WorkerTable {
    /// Returns whether a worker that is no longer configured gets no requests any more.
    pub(crate) fn is_closed(&self, id: WorkerId) -> bool {
        self.with(id, |entry| {
            entry.machine.admission() == WorkerAdmission::Closed
        })
        .unwrap_or(true)
    }

    /// Begins the removal of these workers: see [`WorkerEvent::Remove`].
    pub(crate) fn remove_workers(&self, leaving: &BTreeSet<WorkerId>, until: Moment) {
        if leaving.is_empty() {
            return;
        }
        let mut entries = self.entries.lock();
        // All are marked before any is evaluated: a leaving worker replaces no other.
        for entry in &mut *entries {
            if leaving.contains(&entry.view.id) {
                self.step(entry, WorkerEvent::Remove { until });
            }
        }
        self.close_replaced_and_publish(&mut entries);
    }

    /// Closes workers whose replacements are ready, or whose time limit is over.
    pub(crate) fn close_replaced(&self) {
        let mut entries = self.entries.lock();
        if self.close_no_longer_needed(&mut entries) {
            self.publish(&entries);
        }
    }

    /// Closes the workers that are no longer needed; returns whether any was closed.
    pub(super) fn close_no_longer_needed(&self, entries: &mut [WorkerRecord]) -> bool {
        let over = replacement::no_longer_needed(entries, self.clock.now());
        for at in &over {
            self.step(&mut entries[*at], WorkerEvent::Close);
        }
        !over.is_empty()
    }
}
