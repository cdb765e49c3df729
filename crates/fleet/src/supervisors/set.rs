//! The handles of all supervisors, and the numbers of their workers.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use kv_blocks::WorkerId;
use net::WorkerUrl;
use tokio::{sync::watch, task::JoinHandle};

use crate::{NumberedWorker, supervisor_config::SupervisorConfig};

/// The supervisors of a fleet.
#[derive(Default)]
pub(super) struct SupervisorSet {
    /// The next number to assign.
    next_id: u32,
    /// Workers of an earlier process that no configuration has named yet.
    earlier: Vec<NumberedWorker>,
    pub(super) handles: Vec<SupervisorHandle>,
}

/// Handle of one worker's supervisor.
pub(super) struct SupervisorHandle {
    pub(super) id: WorkerId,
    pub(super) name: Arc<str>,
    pub(super) url: WorkerUrl,
    pub(super) tls: config::WorkerTls,
    /// Whether the worker is no longer configured.
    pub(super) leaving: bool,
    pub(super) config: watch::Sender<Arc<SupervisorConfig>>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) task: JoinHandle<()>,
}

impl SupervisorSet {
    /// Creates an empty set. Workers like those of an earlier process get their numbers of then.
    pub(super) fn new(earlier: Vec<NumberedWorker>) -> Self {
        let numbers = earlier.iter().map(|worker| worker.id.0);
        Self {
            next_id: numbers.max().map_or(0, |last| last.saturating_add(1)),
            earlier,
            handles: Vec::new(),
        }
    }

    /// Returns the workers that are not leaving.
    pub(super) fn numbered(&self) -> Vec<NumberedWorker> {
        let staying = self.handles.iter().filter(|handle| !handle.leaving);
        let numbered = staying.map(|handle| NumberedWorker {
            id: handle.id,
            name: Arc::clone(&handle.name),
            url: handle.url.to_string(),
        });
        numbered.collect()
    }

    /// Gives up the numbers of an earlier process that no worker has taken.
    pub(super) fn take_unclaimed(&mut self) -> Vec<WorkerId> {
        let earlier = std::mem::take(&mut self.earlier);
        earlier.into_iter().map(|worker| worker.id).collect()
    }

    /// Returns the number of a configured worker: that of the same worker in the configuration
    /// before, or in an earlier process, or a new one.
    pub(super) fn number_of(&mut self, worker: &config::WorkerEntry, url: &WorkerUrl) -> WorkerId {
        // Other trust roots or identities may mean another server, so such a worker counts as
        // another one.
        let same = |handle: &&SupervisorHandle| {
            !handle.leaving
                && *handle.name == *worker.name
                && handle.url == *url
                && handle.tls == worker.tls
        };
        if let Some(handle) = self.handles.iter().find(same) {
            return handle.id;
        }
        let alike = |earlier: &NumberedWorker| {
            *earlier.name == *worker.name && earlier.url == url.to_string()
        };
        if let Some(at) = self.earlier.iter().position(alike) {
            return self.earlier.swap_remove(at).id;
        }
        self.next_id += 1;
        WorkerId(self.next_id - 1)
    }

    /// Marks the workers that are missing in these configurations.
    pub(super) fn mark_leaving(&mut self, configs: &[SupervisorConfig]) {
        let stay: HashSet<WorkerId> = configs.iter().map(|config| config.id).collect();
        for handle in &mut self.handles {
            handle.leaving |= !stay.contains(&handle.id);
        }
    }

    /// Returns the workers that are no longer configured, in the order of their numbers.
    pub(super) fn leaving(&self) -> BTreeSet<WorkerId> {
        let leaving = self.handles.iter().filter(|handle| handle.leaving);
        leaving.map(|handle| handle.id).collect()
    }
}

impl SupervisorHandle {
    pub(super) async fn end(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, worker = %self.name, "a worker's supervisor ended with a panic");
        }
    }
}
