//! Caches that are gone: what the index knows of them is credited no more, and forgotten beside.

use event_sources::StreamState;
use kv_blocks::{Target, WorkerId};

use super::WorkerTable;
use crate::{WorkerState, worker_record::WorkerRecord};

impl WorkerTable {
    /// Forgets what these targets had cached: nothing of it is credited from now on, and the memory is freed beside.
    pub(crate) fn forget_cache(&self, targets: impl IntoIterator<Item = Target>) {
        targets
            .into_iter()
            .for_each(|target| self.index.retire(target));
        self.sweeper.wake();
    }

    /// Forgets what a worker had cached, and which model it serves.
    pub(crate) fn forget_model(&self, id: WorkerId) {
        self.index.retire_worker(id);
        self.sweeper.wake();
    }

    /// A process that is gone has lost its cache. A stream that is still connected says otherwise and is believed; one
    /// that comes back announces the new process's blocks only after this.
    pub(super) fn forget_lost_cache(&self, entry: &mut WorkerRecord) {
        if !entry.outage.refused
            || entry.outage.cache_forgotten
            || entry.health.state() != WorkerState::Down
        {
            return;
        }
        let connected = entry
            .streams
            .iter()
            .any(|stream| stream.source.state() != StreamState::Connecting);
        if !connected {
            entry.outage.cache_forgotten = true;
            self.forget_cache(entry.view.targets());
        }
    }
}
