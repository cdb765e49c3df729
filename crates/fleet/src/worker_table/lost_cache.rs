//! Lost caches: their index content is no longer credited, and freed in the background.

use kv_blocks::{Target, WorkerId};

use super::WorkerTable;

impl WorkerTable {
    /// Forgets the cached content of these targets: it is not credited from now on, and its memory
    /// is freed in the background.
    pub(crate) fn forget_cache(&self, targets: impl IntoIterator<Item = Target>) {
        targets
            .into_iter()
            .for_each(|target| self.index.retire(target));
        self.sweeper.wake();
    }

    /// Forgets the blocks of a worker that an earlier process saved and no stream has proven yet.
    pub(crate) fn forget_unproven(&self, id: WorkerId) {
        let unproven = self.index.unproven_targets();
        self.forget_cache(unproven.into_iter().filter(|target| target.worker == id));
    }

    /// Forgets a worker's cached content, and which model it serves.
    pub(crate) fn forget_model(&self, id: WorkerId) {
        self.index.retire_worker(id);
        self.sweeper.wake();
    }
}
