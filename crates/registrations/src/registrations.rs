//! The shared workers, for the rest of the process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use net::Clock;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use crate::{
    Refusal, Registration, RegistrationRefusal, WorkerChange,
    table::{KeyWrite, ObservationError, RegistrationTable, TableFull},
    value::MOST_BYTES,
};

/// Most bytes of an entry, so that its value has room for the rest.
const MOST_ENTRY_BYTES: usize = MOST_BYTES - 4096;

/// The workers that the replicas share. All calls return at once.
///
/// A caller that changes the router's own workers calls [`Self::register`] and its siblings, or
/// [`Self::changes`] and [`Self::applied`], under the lock of those workers: so both lists change
/// in the same order.
#[derive(Debug)]
pub struct Registrations {
    table: Mutex<RegistrationTable>,
    pub(crate) clock: Clock,
    /// Wakes the task that writes.
    pub(crate) changed: Notify,
    /// Whether this router has applied once what the bucket had.
    pub(crate) first_read: watch::Sender<bool>,
    refused: [AtomicU64; Refusal::ALL.len()],
}

/// Why a worker cannot register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// The table takes no more.
    #[error(
        "the replicas share as many workers as they can: remove some, or write them into the file"
    )]
    Full,
    /// The entry is too large to be shared.
    #[error("the entry has {0} bytes, and replicas share at most {MOST_ENTRY_BYTES}: shorten it")]
    TooLarge(usize),
}

/// Refused registrations by reason.
pub type RefusalCounts = [(&'static str, u64); Refusal::ALL.len()];

/// Numbers of workers, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationReport {
    /// Workers that are registered with any replica.
    pub registered: usize,
    /// Workers that operators drained.
    pub drained: usize,
    /// Workers with a change that the bucket does not have yet.
    pub pending: usize,
    /// Workers whose registration this router does not use.
    pub refused: usize,
    /// Registrations refused so far.
    pub refusals: RefusalCounts,
}

impl Registrations {
    /// Returns an empty table. `replica` names this process among its replicas.
    pub fn new(replica: Arc<str>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::new(RegistrationTable::new(replica)),
            clock,
            changed: Notify::new(),
            first_read: watch::Sender::new(false),
            refused: Default::default(),
        })
    }

    /// Checks whether a worker can be shared.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn check(&self, name: &str, entry: &Map<String, Value>) -> Result<(), RegistrationError> {
        let bytes = serde_json::to_vec(entry).map_or(0, |text| text.len());
        if bytes > MOST_ENTRY_BYTES {
            return Err(RegistrationError::TooLarge(bytes));
        }
        let has_room = self.table.lock().has_room_for(name);
        has_room.then_some(()).ok_or(RegistrationError::Full)
    }

    /// Shares a worker that registered with this router, or that renews its lease.
    pub fn register(&self, name: &str, registration: Registration) {
        let now = self.clock.run_time();
        let registered = self.table.lock().register(now, name, registration);
        self.called(name, registered);
    }

    /// Removes a worker from all replicas, or its drain; returns whether they knew it.
    pub fn unregister(&self, name: &str) -> bool {
        let was_known = self.table.lock().unregister(name);
        self.changed.notify_one();
        was_known
    }

    /// Drains or resumes a worker at all replicas.
    pub fn set_drained(&self, name: &str, drained: bool) {
        let set = self.table.lock().set_drained(name, drained);
        self.called(name, set);
    }

    /// Shares a worker that this router knows from before its start, unless the bucket knows of its
    /// removal.
    pub fn restore(&self, name: &str, registration: Registration) {
        let restored = self.table.lock().restore(name, registration);
        self.called(name, restored);
    }

    fn called(&self, name: &str, outcome: Result<(), TableFull>) {
        if let Err(error) = outcome {
            tracing::warn!(worker = name, %error, "a change stays at this router");
        }
        self.changed.notify_one();
    }

    /// Returns whether a worker is registered with any replica.
    pub fn is_registered(&self, name: &str) -> bool {
        let worker = self.table.lock().in_force(name);
        worker.is_some_and(|worker| worker.registration.is_some())
    }

    /// Returns whether operators drained a worker, also one that no replica has.
    pub fn is_drained(&self, name: &str) -> bool {
        let worker = self.table.lock().in_force(name);
        worker.is_some_and(|worker| worker.drained)
    }

    /// Returns the changes that this router has to make to its workers.
    pub fn changes(&self) -> Vec<WorkerChange> {
        self.table.lock().changes()
    }

    /// Records what this router made of a change.
    pub fn applied(&self, change: WorkerChange, outcome: Result<(), RegistrationRefusal>) {
        let name = change.name.clone();
        let is_removal = change.wanted.registration.is_none();
        let reason = outcome.as_ref().map_err(|refusal| refusal.reason).copied();
        let is_new = self.table.lock().applied(change, reason);
        if let (Err(RegistrationRefusal { reason, detail }), true) = (outcome, is_new) {
            self.count(reason);
            let reason = reason.as_str();
            if is_removal {
                tracing::warn!(
                    worker = name,
                    reason,
                    detail,
                    "a worker that the replicas removed stays here: its removal is tried again"
                );
            } else {
                tracing::warn!(
                    worker = name,
                    reason,
                    detail,
                    "a worker that is registered with the replicas is not used here"
                );
            }
        }
    }

    /// Returns the names of the workers that this router has drained.
    pub fn drained(&self) -> Vec<String> {
        self.table.lock().drained()
    }

    /// Resolves when this router has applied once what the bucket had.
    pub async fn first_read(&self) {
        // The sender lives as long as `self`.
        let _ = self.first_read.subscribe().wait_for(|read| *read).await;
    }

    /// Returns the numbers for metrics.
    pub fn report(&self) -> RegistrationReport {
        let counts = self.table.lock().counts();
        let count = |reason: Refusal| self.refused[reason as usize].load(Ordering::Relaxed);
        RegistrationReport {
            registered: counts.registered,
            drained: counts.drained,
            pending: counts.pending,
            refused: counts.refused,
            refusals: Refusal::ALL.map(|reason| (reason.as_str(), count(reason))),
        }
    }

    fn count(&self, reason: Refusal) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn begin_read(&self) {
        self.table.lock().begin_read();
    }

    pub(crate) fn end_read(&self) {
        self.table.lock().end_read(self.clock.run_time());
    }

    pub(crate) fn disconnected(&self) {
        self.table.lock().disconnected();
    }

    pub(crate) fn observe(&self, key: &str, value: (&[u8], u64)) {
        let observed = self.table.lock().observe(self.clock.run_time(), key, value);
        let Err(error) = observed else { return };
        self.count(match error {
            ObservationError::Value(_) => Refusal::Unreadable,
            ObservationError::TableFull => Refusal::TooMany,
        });
        tracing::warn!(key, %error, "a value of the replicas' workers is ignored");
    }

    pub(crate) fn observe_deletion(&self, key: &str, revision: u64) {
        self.table.lock().observe_deletion(key, revision);
    }

    /// Ends leases; returns whether this router has changes to make.
    pub(crate) fn tick(&self, retry: Retry) -> bool {
        let mut table = self.table.lock();
        table.end_leases(self.clock.run_time());
        if retry == Retry::Refused {
            table.retry_refused();
        }
        self.changed.notify_one();
        table.has_changes()
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.table.lock().has_changes()
    }

    pub(crate) fn repeat_changes(&self) {
        self.table.lock().repeat_changes();
    }

    pub(crate) fn has_lost_write(&self) -> bool {
        self.table.lock().has_lost_write(self.clock.run_time())
    }

    pub(crate) fn is_current(&self) -> bool {
        self.table.lock().is_current()
    }

    pub(crate) fn writes(&self) -> Vec<KeyWrite> {
        self.table.lock().writes(self.clock.run_time())
    }
}

/// Which refused changes are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    Nothing,
    Refused,
}

/// Interval at which refused changes are tried again.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(10);
