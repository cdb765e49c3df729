//! The records of all workers, and the snapshot made of them.
//!
//! Supervisors write here, the request path reads the snapshot and reports failures. The lock is
//! held for a few lines and never across an await; the snapshot is rebuilt only when something in
//! it changed.
//!
//! **Invariant**: a write is published before the lock is released, so a decision made after a
//! reported failure sees it.

mod facts;
mod lost_cache;
mod publishers;
mod removal;
mod requests;

use std::{collections::HashSet, sync::Arc};

use arc_swap::ArcSwap;
use kv_blocks::{Moment, WorkerId};
use kv_index::KvIndex;
use net::Clock;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use self::publishers::PublisherClaims;
use crate::{
    EngineLoad, Snapshot, WorkerState, WorkerVerdict,
    request_record::RequestRecords,
    snapshot_build,
    sweeper::IndexSweeper,
    worker_machine::{HealthSettings, SupervisorAction, TableAction, WorkerEvent},
    worker_record::WorkerRecord,
};

/// All workers.
pub(crate) struct WorkerTable {
    pub(crate) clock: Clock,
    pub(crate) index: Arc<KvIndex>,
    #[cfg(feature = "nats")]
    pub(crate) event_log: Option<Arc<event_log::EventLog>>,
    health: RwLock<Arc<HealthSettings>>,
    snapshot: ArcSwap<Snapshot>,
    /// In the order of their numbers.
    entries: Mutex<Vec<WorkerRecord>>,
    /// Avoids the lock of all entries on the usual path.
    records: RequestRecords,
    sweeper: IndexSweeper,
    publishers: PublisherClaims,
    /// Workers that have had their first verdict.
    pub(crate) reported: watch::Sender<HashSet<WorkerId>>,
    /// Counts checks of workers.
    pub(crate) checks: watch::Sender<u64>,
}

impl std::fmt::Debug for WorkerTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerTable")
            .field("snapshot", &self.snapshot.load())
            .finish_non_exhaustive()
    }
}

impl WorkerTable {
    /// Creates a table without workers.
    pub(crate) fn new(index: Arc<KvIndex>, clock: Clock) -> Self {
        Self {
            clock,
            sweeper: IndexSweeper::new(Arc::clone(&index)),
            index,
            #[cfg(feature = "nats")]
            event_log: None,
            health: RwLock::default(),
            snapshot: ArcSwap::from_pointee(snapshot_build::build(&[])),
            entries: Mutex::default(),
            records: RequestRecords::default(),
            publishers: PublisherClaims::default(),
            reported: watch::Sender::default(),
            checks: watch::Sender::new(0),
        }
    }

    /// Sets the log that the routers of a fleet share.
    #[cfg(feature = "nats")]
    pub(crate) fn with_event_log(mut self, event_log: Option<Arc<event_log::EventLog>>) -> Self {
        self.event_log = event_log;
        self
    }

    /// Adds a worker.
    pub(crate) fn add(&self, entry: WorkerRecord) {
        self.records.add(entry.view.id);
        let mut entries = self.entries.lock();
        let at = entries.partition_point(|known| known.view.id < entry.view.id);
        entries.insert(at, entry);
        self.publish(&entries);
    }

    /// Removes a worker and its cached content.
    pub(crate) fn remove(&self, id: WorkerId) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| entry.view.id != id);
        self.publish(&entries);
        drop(entries);
        self.records.remove(id);
        self.reported
            .send_if_modified(|reported| reported.remove(&id));
        self.forget_model(id);
    }

    /// Replaces the rules.
    pub(crate) fn reconfigure(&self, health: &Arc<HealthSettings>) {
        *self.health.write() = Arc::clone(health);
        for entry in &mut *self.entries.lock() {
            self.step(entry, WorkerEvent::HealthRules(Arc::clone(health)));
        }
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    pub(crate) fn wake_of(&self, id: WorkerId) -> Arc<Notify> {
        self.with(id, |entry| Arc::clone(&entry.wake))
            .unwrap_or_default()
    }

    /// Reads one worker.
    pub(crate) fn with<R>(&self, id: WorkerId, read: impl FnOnce(&WorkerRecord) -> R) -> Option<R> {
        find(&mut self.entries.lock(), id).map(|entry| read(entry))
    }

    /// Reads all workers.
    pub(crate) fn each(&self, mut read: impl FnMut(&WorkerRecord)) {
        self.entries.lock().iter().for_each(&mut read);
    }

    /// Changes the facts about one worker and publishes, in that order, under one lock.
    pub(crate) fn change<R>(
        &self,
        id: WorkerId,
        change: impl FnOnce(&mut WorkerRecord) -> R,
    ) -> Option<R> {
        let mut entries = self.entries.lock();
        let entry = find(&mut entries, id)?;
        let result = change(entry);
        self.refresh_view(entry);
        self.close_replaced_and_publish(&mut entries);
        Some(result)
    }

    /// Feeds an event to a worker's state machine. Returns the actions for its supervisor.
    pub(crate) fn on(&self, id: WorkerId, event: WorkerEvent) -> Vec<SupervisorAction> {
        self.on_locked(&mut self.entries.lock(), id, event)
    }

    fn on_locked(
        &self,
        entries: &mut [WorkerRecord],
        id: WorkerId,
        event: WorkerEvent,
    ) -> Vec<SupervisorAction> {
        let Some(entry) = find(entries, id) else {
            return Vec::new();
        };
        let (changed, actions) = self.step(entry, event);
        if changed == SnapshotEffect::Changed {
            self.close_replaced_and_publish(entries);
        }
        actions
    }

    /// Feeds an event to a worker's state machine and carries out the actions on its record.
    fn step(
        &self,
        entry: &mut WorkerRecord,
        event: WorkerEvent,
    ) -> (SnapshotEffect, Vec<SupervisorAction>) {
        let streams = entry.stream_summary();
        let actions = entry.machine.on(self.clock.now(), streams, event);
        let mut changed = SnapshotEffect::Unchanged;
        for action in actions.table {
            match action {
                TableAction::ForgetCache => self.forget_cache(entry.view.targets()),
                TableAction::ClearLoad => {
                    Arc::make_mut(&mut entry.view).load = EngineLoad::default()
                }
                TableAction::Publish => {
                    self.refresh_view(entry);
                    changed = SnapshotEffect::Changed;
                }
                TableAction::Wake => entry.wake.notify_one(),
            }
        }
        (changed, actions.supervisor)
    }

    /// Returns when the next tick of a worker's state machine is due.
    pub(crate) fn next_wake(&self, id: WorkerId) -> Option<Moment> {
        let now = self.clock.now();
        self.with(id, |entry| {
            entry.machine.next_wake(now, entry.stream_summary())
        })?
    }

    /// Reads the states of a worker's streams again.
    pub(crate) fn read_streams(&self, id: WorkerId) {
        let mut entries = self.entries.lock();
        let Some(entry) = find(&mut entries, id) else {
            return;
        };
        let change = entry.stream_change();
        let (changed, _) = self.step(entry, WorkerEvent::StreamsChanged(change.connections));
        if change.outdated {
            self.refresh_view(entry);
        }
        if change.outdated || changed == SnapshotEffect::Changed {
            self.close_replaced_and_publish(&mut entries);
        }
    }

    /// Returns the present verdict on a worker.
    pub(crate) fn verdict(&self, id: WorkerId) -> Option<WorkerVerdict> {
        self.with(id, WorkerRecord::verdict)
    }

    /// Updates the view from state machine and streams.
    fn refresh_view(&self, entry: &mut WorkerRecord) {
        if !entry.refresh_view() {
            return;
        }
        Arc::make_mut(&mut entry.view).health.since = self.clock.wall();
        if entry.view.health.state == WorkerState::Ready {
            self.records.answered(entry.view.id);
        }
    }

    fn close_replaced_and_publish(&self, entries: &mut [WorkerRecord]) {
        self.close_no_longer_needed(entries);
        self.publish(entries);
    }

    fn publish(&self, entries: &[WorkerRecord]) {
        self.snapshot
            .store(Arc::new(snapshot_build::build(entries)));
    }
}

/// Whether an event changed what the snapshot shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapshotEffect {
    Unchanged,
    Changed,
}

/// Returns the entry of this number; `entries` in the order of their numbers.
fn find(entries: &mut [WorkerRecord], id: WorkerId) -> Option<&mut WorkerRecord> {
    let at = entries
        .binary_search_by_key(&id, |entry| entry.view.id)
        .ok()?;
    entries.get_mut(at)
}
