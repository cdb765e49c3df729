//! The bucket as this router last saw it, and what follows from it. Pure: what the bucket reports
//! and what was called go in with the time; writes and changes of this router come out.

mod record;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use kv_blocks::Moment;
use nats_client::subject_token;

use self::record::{Record, SeenValue};
use crate::{
    Refusal, Registration, SharedWorker, WorkerChange,
    pending::{PendingKind, WorkerCall},
    value::{ValueError, WorkerValue},
};

/// Most workers in the table, and most keys with unreadable values.
const MOST_WORKERS: usize = 4096;
/// Most deletions that stay in the bucket. A router that missed older ones would take the worker
/// for one that the bucket lost, and write it again.
const MOST_DELETIONS: usize = 4096;

/// Most refused changes that are tried again together: each one is checked with the whole
/// configuration.
const MOST_RETRIES: usize = 64;

/// The workers that the replicas share.
#[derive(Debug)]
pub(crate) struct RegistrationTable {
    /// Name of this process among the replicas.
    replica: Arc<str>,
    /// By key; at most [`MOST_WORKERS`], more are refused.
    records: BTreeMap<String, Record>,
    /// Keys whose record may have changed since the last look.
    unwritten: BTreeSet<String>,
    unapplied: BTreeSet<String>,
    /// Revisions of deletions; the oldest beyond [`MOST_DELETIONS`] are removed from the bucket.
    deletions: BTreeSet<u64>,
    /// Revisions of values that cannot be read, of keys without a record.
    unreadable: BTreeMap<String, u64>,
    last_number: u64,
    /// Key of the refused change that was tried again last; empty: none.
    last_retry: String,
    /// Whether the table has everything that the bucket has.
    is_current: bool,
}

/// A write to the bucket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyWrite {
    /// A value in place of that with this revision; `None`: if the key has no value.
    Put {
        key: String,
        revision: Option<u64>,
        value: Vec<u8>,
    },
    /// The deletion of the value with this revision.
    Delete { key: String, revision: u64 },
    /// The removal of the deletion with this revision.
    ForgetDeletion { revision: u64 },
}

/// Numbers of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableCounts {
    pub(crate) registered: usize,
    pub(crate) drained: usize,
    pub(crate) pending: usize,
    pub(crate) refused: usize,
}

/// Why the value of a key is not in the table.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum ObservationError {
    #[error(transparent)]
    Value(#[from] ValueError),
    #[error("there are {MOST_WORKERS} workers already")]
    TableFull,
}

/// The table takes no more workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the replicas share {MOST_WORKERS} workers already: remove some, or write them into the file"
)]
pub(crate) struct TableFull;

impl RegistrationTable {
    pub(crate) fn new(replica: Arc<str>) -> Self {
        Self {
            replica,
            records: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            unapplied: BTreeSet::new(),
            deletions: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            last_number: 0,
            last_retry: String::new(),
            is_current: false,
        }
    }

    /// Adds a worker that registered with this router, which has it already.
    pub(crate) fn register(
        &mut self,
        now: Moment,
        name: &str,
        registration: Registration,
    ) -> Result<(), TableFull> {
        self.call(name, |number| WorkerCall::register(registration, number))?;
        self.change(&subject_token(name), |record| record.begin_lease(now));
        Ok(())
    }

    /// Removes a worker that this router no longer has, also if it is only drained; returns whether
    /// there was one.
    pub(crate) fn unregister(&mut self, name: &str) -> bool {
        let is_known = self.in_force(name).is_some_and(|worker| !worker.is_empty());
        if is_known {
            // The record exists, so there is room.
            let _ = self.call(name, |number| {
                WorkerCall::set(SharedWorker::default(), number)
            });
        }
        is_known
    }

    /// Drains or resumes a worker, as this router has already.
    pub(crate) fn set_drained(&mut self, name: &str, drained: bool) -> Result<(), TableFull> {
        self.call(name, |number| WorkerCall::drain(drained, number))
    }

    /// Adds a registration that this router has from before its start.
    pub(crate) fn restore(
        &mut self,
        name: &str,
        registration: Registration,
    ) -> Result<(), TableFull> {
        let number = self.next_number();
        let record = self.record_named(name)?;
        let worker = SharedWorker {
            registration: Some(registration),
            drained: false,
        };
        record.present = worker.clone();
        record.set_pending(PendingKind::Restore(worker), number);
        self.touch(&subject_token(name));
        Ok(())
    }

    /// Returns what this router goes by; `None`: nothing is known of the worker.
    pub(crate) fn in_force(&self, name: &str) -> Option<SharedWorker> {
        self.records.get(&subject_token(name)).map(Record::in_force)
    }

    fn call(&mut self, name: &str, call: impl FnOnce(u64) -> WorkerCall) -> Result<(), TableFull> {
        let number = self.next_number();
        self.record_named(name)?.call(call(number), number);
        self.touch(&subject_token(name));
        Ok(())
    }

    fn record_named(&mut self, name: &str) -> Result<&mut Record, TableFull> {
        let key = subject_token(name);
        if !self.has_room_for(name) {
            return Err(TableFull);
        }
        let unreadable = self.unreadable.get(&key);
        let record = self.records.entry(key).or_default();
        name.clone_into(&mut record.name);
        if let (None, Some(revision)) = (&record.seen, unreadable) {
            // What is to be written replaces it.
            record.seen = Some(SeenValue {
                revision: *revision,
                ..SeenValue::default()
            });
        }
        Ok(record)
    }

    /// Returns whether a worker of this name has a place in the table.
    pub(crate) fn has_room_for(&self, name: &str) -> bool {
        self.records.len() < MOST_WORKERS || self.records.contains_key(&subject_token(name))
    }

    /// Returns whether the table has everything that the bucket has.
    pub(crate) fn is_current(&self) -> bool {
        self.is_current
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Changes a record, and forgets it if nothing is left of it.
    fn change(&mut self, key: &str, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.records.get_mut(key) {
            change(record);
            self.touch(key);
        }
    }

    fn touch(&mut self, key: &str) {
        if self.records.get(key).is_some_and(Record::is_idle) {
            self.records.remove(key);
        } else {
            self.unwritten.insert(key.to_owned());
            self.unapplied.insert(key.to_owned());
        }
    }

    /// Takes note that the bucket is read from the beginning, over a new connection.
    pub(crate) fn begin_read(&mut self) {
        self.disconnected();
        self.deletions.clear();
        for record in self.records.values_mut() {
            record.is_reported = false;
        }
    }

    /// Takes note that the bucket is away.
    pub(crate) fn disconnected(&mut self) {
        self.is_current = false;
        for (key, record) in &mut self.records {
            if let Some(pending) = &mut record.pending {
                pending.sent_at = None;
                self.unwritten.insert(key.clone());
            }
        }
    }

    /// Takes a value that the bucket has now.
    pub(crate) fn observe(
        &mut self,
        now: Moment,
        key: &str,
        (bytes, revision): (&[u8], u64),
    ) -> Result<(), ObservationError> {
        let value = match WorkerValue::decode(key, bytes) {
            Ok(value) => value,
            Err(error) => return self.observe_unreadable(key, revision, error),
        };
        let replica = Arc::clone(&self.replica);
        let name = value.name.clone();
        let record = self
            .record_named(&name)
            .map_err(|TableFull| ObservationError::TableFull)?;
        record.observe(now, value, (revision, &replica));
        self.unreadable.remove(key);
        self.touch(key);
        Ok(())
    }

    /// Keeps what is known of a worker: a router of another version wrote the value, perhaps. It is
    /// an error once for each key.
    fn observe_unreadable(
        &mut self,
        key: &str,
        revision: u64,
        error: ValueError,
    ) -> Result<(), ObservationError> {
        if let Some(record) = self.records.get_mut(key) {
            record.is_reported = true;
            record.has_unseen_write = false;
            if let Some(pending) = &mut record.pending {
                pending.sent_at = None;
            }
            let seen = record.seen.get_or_insert_default();
            seen.revision = revision;
            self.touch(key);
        }
        let is_new = !self.unreadable.contains_key(key);
        if self.unreadable.len() < MOST_WORKERS || !is_new {
            self.unreadable.insert(key.to_owned(), revision);
        }
        if is_new { Err(error.into()) } else { Ok(()) }
    }

    /// Takes the deletion of a key.
    pub(crate) fn observe_deletion(&mut self, key: &str, revision: u64) {
        self.deletions.insert(revision);
        self.unreadable.remove(key);
        self.change(key, Record::observe_deletion);
    }

    /// Takes note that everything in the bucket was reported. A worker that was not has a fresh
    /// lease, as those that were: renewals may have been missed.
    pub(crate) fn end_read(&mut self, now: Moment) {
        self.is_current = true;
        let keys: Vec<String> = self.records.keys().cloned().collect();
        for key in keys {
            let number = self.next_number();
            self.change(&key, |record| {
                if !record.is_reported {
                    record.observe_absence(number);
                    record.begin_lease(now);
                }
            });
        }
    }

    /// Ends the leases whose time is up.
    pub(crate) fn end_leases(&mut self, now: Moment) {
        let over = self.records.iter().filter(|(_, it)| it.is_over(now));
        let over: Vec<String> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            let (number, is_current) = (self.next_number(), self.is_current);
            self.change(&key, |record| record.end_lease(number, is_current));
        }
    }

    /// Has changes tried again whose refusal may be over: at most [`MOST_RETRIES`], in turn.
    pub(crate) fn retry_refused(&mut self) {
        let behind = (Bound::Excluded(self.last_retry.as_str()), Bound::Unbounded);
        let records = self.records.range_mut::<str, _>(behind);
        let refused = records.filter_map(|(key, it)| it.retry_refused().then(|| key.clone()));
        let keys: Vec<String> = refused.take(MOST_RETRIES).collect();
        // The next turn begins at the first one if this was the last.
        let has_more = keys.len() == MOST_RETRIES;
        let last = keys.last().filter(|_| has_more);
        self.last_retry = last.cloned().unwrap_or_default();
        self.unapplied.extend(keys);
    }

    /// Returns the writes that are to be made now. A write that finds another revision than it
    /// states is made again when that revision was observed.
    pub(crate) fn writes(&mut self, now: Moment) -> Vec<KeyWrite> {
        if !self.is_current {
            return Vec::new();
        }
        let mut writes = Vec::new();
        for key in std::mem::take(&mut self.unwritten) {
            let Some(record) = self.records.get_mut(&key) else {
                continue;
            };
            writes.extend(record.write(now, &key, &self.replica));
            if record.is_idle() {
                self.records.remove(&key);
            }
        }
        while self.deletions.len() > MOST_DELETIONS {
            let oldest = self.deletions.pop_first();
            writes.extend(oldest.map(|revision| KeyWrite::ForgetDeletion { revision }));
        }
        writes
    }

    /// Returns whether the bucket does not show a write that was made long ago.
    pub(crate) fn has_lost_write(&self, now: Moment) -> bool {
        self.records.values().any(|record| record.is_overdue(now))
    }

    /// Has all changes that were not answered made again.
    pub(crate) fn repeat_changes(&mut self) {
        self.unapplied.extend(self.records.keys().cloned());
    }

    /// Returns whether this router may have to change its workers.
    pub(crate) fn has_changes(&self) -> bool {
        !self.unapplied.is_empty()
    }

    /// Returns the changes that this router has to make to its workers; each is to be answered with
    /// [`Self::applied`].
    pub(crate) fn changes(&mut self) -> Vec<WorkerChange> {
        let keys = std::mem::take(&mut self.unapplied);
        let changed = keys.iter().filter_map(|key| {
            let record = self.records.get(key)?;
            record.change(key)
        });
        changed.collect()
    }

    /// Records what this router made of a change; returns whether a refusal is a new one.
    pub(crate) fn applied(&mut self, change: WorkerChange, outcome: Result<(), Refusal>) -> bool {
        let key = change.key.clone();
        let Some(record) = self.records.get_mut(&key) else {
            return false;
        };
        let is_new = record.applied(change, outcome);
        if record.is_idle() {
            self.records.remove(&key);
        }
        is_new
    }

    /// Returns the names of the drained workers.
    pub(crate) fn drained(&self) -> Vec<String> {
        let drained = self.records.values().filter(|it| it.present.drained);
        drained.map(|record| record.name.clone()).collect()
    }

    pub(crate) fn counts(&self) -> TableCounts {
        let count =
            |is: fn(&Record) -> bool| self.records.values().filter(|record| is(record)).count();
        TableCounts {
            registered: count(|record| record.in_force().registration.is_some()),
            drained: count(|record| record.in_force().drained),
            pending: count(|record| record.pending.is_some()),
            refused: count(Record::is_refused) + self.unreadable.len(),
        }
    }
}
