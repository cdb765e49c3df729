//! Lost caches: their index content is no longer credited, and freed in the background.

use event_sources::StreamState;
use kv_blocks::{Target, WorkerId};

use super::WorkerTable;
use crate::{WorkerState, worker_record::WorkerRecord};

impl WorkerTable {
    /// Forgets the cached content of these targets: it is not credited from now on, and its memory
    /// is freed in the background.
    pub(crate) fn forget_cache(&self, targets: impl IntoIterator<Item = Target>) {
        targets
            .into_iter()
            .for_each(|target| self.index.retire(target));
        self.sweeper.wake();
    }

    /// Forgets a worker's cached content, and which model it serves.
    pub(crate) fn forget_model(&self, id: WorkerId) {
        self.index.retire_worker(id);
        self.sweeper.wake();
    }

    /// Forgets the cache of a process that has ended. A stream that is still connected is evidence
    /// against that and wins; a stream that reconnects announces the new process's blocks only
    /// after this.
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
