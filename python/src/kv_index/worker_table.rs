//! The names of workers and their numbers in the index.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kv_blocks::{DpRank, Target, WorkerId};

use super::snapshot_file::SavedWorker;

/// Most ranks of all workers together; the index has room for four times as many.
const MOST_TARGETS: usize = 1 << 16;
/// Longest name of a worker, in bytes.
const LONGEST_NAME: usize = 256;

/// The workers of one index. A number is never used again.
#[derive(Debug, Default)]
pub(super) struct WorkerTable {
    ids: BTreeMap<Arc<str>, WorkerId>,
    names: BTreeMap<WorkerId, Arc<str>>,
    /// The targets that the index knows.
    targets: BTreeSet<Target>,
    last: u32,
}

impl WorkerTable {
    /// Creates the table of a snapshot: its workers, and the targets of the loaded index.
    pub(super) fn of_saved(saved: Vec<SavedWorker>, targets: impl Iterator<Item = Target>) -> Self {
        let mut table = Self::default();
        for SavedWorker { id, name } in saved {
            let name: Arc<str> = name.into();
            table.last = table.last.max(id);
            table.ids.insert(Arc::clone(&name), WorkerId(id));
            table.names.insert(WorkerId(id), name);
        }
        for target in targets {
            table.last = table.last.max(target.worker.0);
            if table.names.contains_key(&target.worker) {
                table.targets.insert(target);
            }
        }
        table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the target of a known worker and rank.
    pub(super) fn find(&self, worker: &str, rank: DpRank) -> Option<Target> {
        let worker = *self.ids.get(worker)?;
        Some(Target { worker, rank }).filter(|target| self.targets.contains(target))
    }

    pub(super) fn name(&self, worker: WorkerId) -> Option<Arc<str>> {
        self.names.get(&worker).cloned()
    }

    /// Returns the target of a worker and rank, which are added if they are not known; an error
    /// message if there is no room or the name is not possible.
    pub(super) fn add(&mut self, worker: &str, rank: DpRank) -> Result<Target, String> {
        if worker.is_empty() || worker.len() > LONGEST_NAME {
            return Err(format!(
                "worker has {} bytes: expected a name of 1 to {LONGEST_NAME} bytes",
                worker.len()
            ));
        }
        if self.targets.len() >= MOST_TARGETS {
            return Err(format!(
                "worker {worker:?} has no room beside {MOST_TARGETS} others: clear those that are gone"
            ));
        }
        let id = match self.ids.get(worker) {
            Some(id) => *id,
            None => self.add_worker(worker)?,
        };
        let target = Target { worker: id, rank };
        self.targets.insert(target);
        Ok(target)
    }

    fn add_worker(&mut self, worker: &str) -> Result<WorkerId, String> {
        self.last = self
            .last
            .checked_add(1)
            .ok_or("every number of a worker was used: create a new KvIndex")?;
        let (id, name) = (WorkerId(self.last), Arc::<str>::from(worker));
        self.ids.insert(Arc::clone(&name), id);
        self.names.insert(id, name);
        Ok(id)
    }

    /// Removes a worker, or all without a name, and returns their numbers.
    pub(super) fn remove(&mut self, worker: Option<&str>) -> Vec<WorkerId> {
        let removed: Vec<_> = match worker {
            Some(worker) => self.ids.remove(worker).into_iter().collect(),
            None => std::mem::take(&mut self.ids).into_values().collect(),
        };
        for id in &removed {
            self.names.remove(id);
        }
        self.targets
            .retain(|target| self.names.contains_key(&target.worker));
        removed
    }

    /// Returns the workers as a snapshot names them.
    pub(super) fn saved(&self) -> Vec<SavedWorker> {
        let workers = self.names.iter();
        workers
            .map(|(id, name)| SavedWorker {
                id: id.0,
                name: name.to_string(),
            })
            .collect()
    }
}
