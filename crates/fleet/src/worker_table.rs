//! The records of all workers, and the snapshot made of them.
//!
//! Supervisors write here, the request path reads the snapshot and reports failures. The lock is
//! held for a few lines and never across an await; the snapshot is rebuilt only when something in
//! it changed.
//!
//! **Invariant**: a write is published before the lock is released, so a decision made after a
//! reported failure sees it.

mod lost_cache;
mod removal;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use arc_swap::ArcSwap;
use event_sources::{SharedSocket, SharedSpec, StreamState};
use kv_blocks::{Moment, Target, WorkerId};
use kv_index::KvIndex;
use net::Clock;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use crate::{
    EngineLoad, FailureKind, RankView, Snapshot, WorkerState, WorkerVerdict,
    health::{CheckOutcome, HealthSettings, NextCheck},
    probe::{ProbeError, REFUSED, Scrape},
    request_record::RequestRecords,
    snapshot_build,
    sweeper::IndexSweeper,
    worker_record::{FollowedStream, WorkerRecord},
};

/// Change of the connections to a worker's publishers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublisherConnections {
    Same,
    /// A connection was lost: the engine died or restarted.
    Lost,
    /// A connection was made.
    Made,
}

/// The rule for ejecting failing workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EjectionRule {
    pub(crate) enabled: bool,
    /// Largest share of the workers that may be ejected at once.
    pub(crate) max_ratio: f64,
}

impl EjectionRule {
    pub(crate) fn of(breaker: &config::CircuitBreakerSection) -> Self {
        Self {
            enabled: breaker.enabled,
            max_ratio: breaker.max_ejected_ratio,
        }
    }
}

/// All workers.
pub(crate) struct WorkerTable {
    pub(crate) clock: Clock,
    pub(crate) index: Arc<KvIndex>,
    ejection: RwLock<EjectionRule>,
    snapshot: ArcSwap<Snapshot>,
    /// In the order of their numbers.
    entries: Mutex<Vec<WorkerRecord>>,
    /// Avoids the lock of all entries on the usual path.
    records: RequestRecords,
    sweeper: IndexSweeper,
    /// Followed endpoints and their workers: one publisher's events must not be credited to two
    /// workers.
    claims: Mutex<HashMap<String, WorkerId>>,
    /// Sockets of ours that workers share, by endpoint, while any of them is in use.
    shared: Mutex<HashMap<String, Weak<SharedSocket>>>,
    /// Workers that have had their first verdict.
    pub(crate) judged: watch::Sender<HashSet<WorkerId>>,
    /// Counts checks of workers.
    pub(crate) looks: watch::Sender<u64>,
}

impl std::fmt::Debug for WorkerTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board")
            .field("snapshot", &self.snapshot.load())
            .finish_non_exhaustive()
    }
}

impl WorkerTable {
    /// Creates the table; `entries` in the order of their numbers.
    pub(crate) fn new(
        entries: Vec<WorkerRecord>,
        ejection: EjectionRule,
        index: Arc<KvIndex>,
        clock: Clock,
    ) -> Self {
        let records = RequestRecords::default();
        entries.iter().for_each(|entry| records.add(entry.view.id));
        let sweeper = IndexSweeper::new(Arc::clone(&index));
        let snapshot = ArcSwap::from_pointee(snapshot_build::build(&entries));
        let (judged, looks) = (watch::Sender::default(), watch::Sender::new(0));
        let (entries, claims, shared) = (Mutex::new(entries), Mutex::default(), Mutex::default());
        let ejection = RwLock::new(ejection);
        Self {
            clock,
            index,
            ejection,
            snapshot,
            entries,
            records,
            sweeper,
            claims,
            shared,
            judged,
            looks,
        }
    }

    /// Adds a worker, whose number is higher than all before it.
    pub(crate) fn add(&self, entry: WorkerRecord) {
        self.records.add(entry.view.id);
        let mut entries = self.entries.lock();
        let at = entries.partition_point(|known| known.view.id < entry.view.id);
        entries.insert(at, entry);
        self.snapshot
            .store(Arc::new(snapshot_build::build(&entries)));
    }

    /// Removes a worker and its cached content.
    pub(crate) fn remove(&self, id: WorkerId) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| entry.view.id != id);
        self.snapshot
            .store(Arc::new(snapshot_build::build(&entries)));
        drop(entries);
        self.records.remove(id);
        self.judged.send_if_modified(|judged| judged.remove(&id));
        self.index.retire_worker(id);
        self.sweeper.wake();
    }

    /// Replaces the rules.
    pub(crate) fn reconfigure(&self, ejection: EjectionRule, health: HealthSettings) {
        *self.ejection.write() = ejection;
        self.entries
            .lock()
            .iter_mut()
            .for_each(|entry| entry.health.reconfigure(health));
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

    /// Changes one worker and publishes, in that order, under one lock.
    pub(crate) fn change<R>(
        &self,
        id: WorkerId,
        change: impl FnOnce(&mut WorkerRecord) -> R,
    ) -> Option<R> {
        let mut entries = self.entries.lock();
        let result = change(find(&mut entries, id)?);
        self.publish(&mut entries, id);
        Some(result)
    }

    fn publish(&self, entries: &mut [WorkerRecord], id: WorkerId) {
        if let Some(entry) = find(entries, id) {
            self.reconcile(entry);
        }
        self.close_no_longer_needed(entries);
        self.snapshot
            .store(Arc::new(snapshot_build::build(entries)));
    }

    /// Updates the view from health and streams.
    fn reconcile(&self, entry: &mut WorkerRecord) {
        let state = entry.state();
        let ranks = entry.rank_views();
        if entry.view.state != state {
            let view = Arc::make_mut(&mut entry.view);
            view.state = state;
            view.since = self.clock.wall();
            if state == WorkerState::Ready {
                self.records.answered(view.id);
            }
        }
        if entry.view.ranks != ranks {
            Arc::make_mut(&mut entry.view).ranks = ranks;
        }
        if state == WorkerState::Ready {
            entry.was_ready = true;
            entry.outage.cache_forgotten = false;
        }
        self.forget_lost_cache(entry);
    }

    /// Records the result of a check.
    pub(crate) fn record_check(&self, id: WorkerId, result: Result<(), &ProbeError>) {
        let now = self.clock.now();
        self.change(id, |entry| {
            let check = result
                .err()
                .map_or(CheckOutcome::Passed, |trouble| trouble.check);
            match check {
                CheckOutcome::Refused => drop(entry.record_process_end()),
                CheckOutcome::NotMade => {}
                CheckOutcome::Passed | CheckOutcome::Loading | CheckOutcome::Failed => {
                    entry.outage.refused = false
                }
            }
            let before = entry.health.state();
            let after = entry.health.record_check(now, check);
            if check == CheckOutcome::NotMade && before == after {
                return;
            }
            let error: Option<Arc<str>> = result.err().map(|trouble| trouble.text.as_str().into());
            if entry.view.last_error != error {
                Arc::make_mut(&mut entry.view).last_error = error;
            }
        });
    }

    /// Records a failed connect probe of a worker that is down. `refused`: nothing listens there.
    pub(crate) fn record_failed_connect(&self, id: WorkerId, refused: bool) {
        let mut entries = self.entries.lock();
        let Some(entry) = find(&mut entries, id) else {
            return;
        };
        entry.health.record_failed_connect();
        if refused && entry.record_process_end() {
            Arc::make_mut(&mut entry.view).last_error = Some(REFUSED.into());
            self.publish(&mut entries, id);
        } else if refused {
            self.forget_lost_cache(entry);
        }
    }

    /// Returns the worker's next check, and whether a failed request demands a check before that.
    pub(crate) fn next(&self, id: WorkerId) -> (NextCheck, bool) {
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        let Some(entry) = find(&mut entries, id) else {
            return (NextCheck::CheckIn(std::time::Duration::MAX), false);
        };
        (
            entry.health.next(now),
            std::mem::take(&mut entry.recheck_requested),
        )
    }

    /// Requests a check before the next one is due.
    pub(crate) fn request_check(&self, id: WorkerId) {
        if let Some(entry) = find(&mut self.entries.lock(), id) {
            entry.recheck_requested = true;
            entry.wake.notify_one();
        }
    }

    /// Records that a check ended, whatever its result.
    pub(crate) fn mark_checked(&self, id: WorkerId) {
        if let Some(entry) = find(&mut self.entries.lock(), id) {
            entry.looked_at = self.clock.now();
        }
        self.looks.send_modify(|looks| *looks += 1);
    }

    /// Records an engine's metrics, read `at`.
    pub(crate) fn record_scrape(&self, id: WorkerId, at: Moment, scrape: &Scrape) {
        let mut entries = self.entries.lock();
        let Some(entry) = find(&mut entries, id) else {
            return;
        };
        // Not part of the snapshot: it grows with every request, and no request reads it.
        entry.prefix_cache = scrape.prefix_cache.counters(at);
        if entry.view.load != scrape.load {
            Arc::make_mut(&mut entry.view).load = scrape.load;
            self.publish(&mut entries, id);
        }
    }

    /// Clears a worker's load that could not be read for so long that the last figures are
    /// outdated.
    pub(crate) fn clear_load(&self, id: WorkerId) {
        let mut entries = self.entries.lock();
        let Some(entry) = find(&mut entries, id) else {
            return;
        };
        if entry.view.load != EngineLoad::default() {
            Arc::make_mut(&mut entry.view).load = EngineLoad::default();
            self.publish(&mut entries, id);
        }
    }

    /// Sets whether a rank's events are trusted. A stream that becomes distrusted is fetched again.
    pub(crate) fn trust(&self, target: Target, trusted: bool) {
        if self.with(target.worker, |_| ()).is_none() {
            return;
        }
        self.index.trust(target, trusted);
        self.change(target.worker, |entry| {
            entry.distrusted.retain(|rank| *rank != target.rank);
            if !trusted {
                entry.distrusted.push(target.rank);
                entry
                    .stream_of(target.rank)
                    .inspect(|stream| stream.source.resync());
            }
        });
    }

    /// Records a failed request (contract of [`crate::Fleet::report_failure`]).
    pub(crate) fn request_failed(&self, id: WorkerId, kind: FailureKind) {
        let now = self.clock.now();
        if kind == FailureKind::Local || !self.records.failed(id, now) {
            return;
        }
        let mut entries = self.entries.lock();
        let ejection = *self.ejection.read();
        let others = ejection.enabled && may_eject(ejection.max_ratio, &entries, id);
        let Some(entry) = find(&mut entries, id) else {
            return;
        };
        let before = entry.health.state();
        let after = entry.health.request_failed(now, kind, others);
        // News also of a worker that is already down: it is no longer a last resort, and its cache
        // is lost.
        let gone = kind == FailureKind::Refused && entry.record_process_end();
        // A worker that is already down has its own pace of connect probes.
        if after != WorkerState::Down {
            entry.recheck_requested = true;
        }
        entry.wake.notify_one();
        if before != after || gone {
            let text = match after {
                WorkerState::Down => REFUSED.to_owned(),
                _ => format!(
                    "requests fail ({}): look at the engine's log",
                    kind.as_str()
                ),
            };
            Arc::make_mut(&mut entry.view).last_error = Some(text.into());
            self.publish(&mut entries, id);
        }
    }

    /// Records a successful request.
    pub(crate) fn request_succeeded(&self, id: WorkerId) {
        if self.records.succeeded(id)
            && let Some(entry) = find(&mut self.entries.lock(), id)
        {
            entry.health.request_succeeded();
        }
    }

    /// Records that a request's reply has begun.
    pub(crate) fn request_answered(&self, id: WorkerId) {
        self.records.answered(id);
    }

    /// Returns whether a request failed there lately with no answer since.
    pub(crate) fn failed_lately(&self, id: WorkerId) -> bool {
        self.records.failed_lately(id, self.clock.now())
    }

    /// Reads the states of a worker's streams again, and returns the change of its connections.
    pub(crate) fn streams_changed(&self, id: WorkerId) -> PublisherConnections {
        let connected = |rank: &RankView| {
            rank.stream
                .is_some_and(|state| state != StreamState::Connecting.as_str())
        };
        let changed = self.with(id, |entry| {
            let mut news = PublisherConnections::Same;
            let mut any = false;
            for stream in &entry.streams {
                let rank = stream.ranks.first();
                let before = entry
                    .view
                    .ranks
                    .get(rank.0 as usize)
                    .copied()
                    .unwrap_or_default();
                let now = entry.rank_view(stream, rank);
                any |= before != now;
                match (connected(&before), connected(&now)) {
                    (true, false) => news = PublisherConnections::Lost,
                    (false, true) if news == PublisherConnections::Same => {
                        news = PublisherConnections::Made
                    }
                    _ => {}
                }
            }
            (any, news)
        });
        let Some((any, news)) = changed else {
            return PublisherConnections::Same;
        };
        if any {
            self.change(id, |entry| {
                if news == PublisherConnections::Made {
                    entry.health.restart_connect_probes();
                }
            });
        }
        news
    }

    /// Returns whether another worker serves this model with another tokenizer, or one of them has
    /// none.
    pub(crate) fn has_conflicting_tokenizer(&self, id: WorkerId, model: &str) -> Option<Arc<str>> {
        let entries = self.entries.lock();
        let own = Arc::clone(
            entries
                .iter()
                .find(|entry| entry.view.id == id)?
                .artefacts
                .get(model)?,
        );
        let differs = |other: &&WorkerRecord| {
            other
                .artefacts
                .get(model)
                .is_some_and(|other| !own.has_tokenizer_of(other))
        };
        let other = entries.iter().find(differs)?;
        Some(Arc::clone(&other.view.name))
    }

    /// Takes a worker's streams out, so that their owner can stop them.
    pub(crate) fn take_streams(&self, id: WorkerId) -> Vec<FollowedStream> {
        self.change(id, |entry| std::mem::take(&mut entry.streams))
            .unwrap_or_default()
    }

    /// Claims a publisher for a worker; the error names the worker that already has it.
    pub(crate) fn claim(&self, endpoint: &str, id: WorkerId) -> Result<(), Arc<str>> {
        let mut claims = self.claims.lock();
        let holder = *claims.entry(endpoint.to_owned()).or_insert(id);
        drop(claims);
        if holder == id {
            return Ok(());
        }
        Err(self
            .with(holder, |entry| Arc::clone(&entry.view.name))
            .unwrap_or_else(|| "another worker".into()))
    }

    /// Releases a worker's claims.
    pub(crate) fn unclaim(&self, id: WorkerId) {
        self.claims.lock().retain(|_, holder| *holder != id);
    }

    /// Returns the socket bound at this endpoint; binds it if necessary.
    pub(crate) fn shared_socket(&self, endpoint: &str, spec: SharedSpec) -> Arc<SharedSocket> {
        let mut shared = self.shared.lock();
        shared.retain(|_, socket| socket.strong_count() > 0);
        if let Some(socket) = shared.get(endpoint).and_then(Weak::upgrade) {
            return socket;
        }
        let socket = Arc::new(SharedSocket::bind(
            spec,
            Arc::clone(&self.index),
            self.clock,
        ));
        shared.insert(endpoint.to_owned(), Arc::downgrade(&socket));
        socket
    }

    /// Returns the present verdict on a worker.
    pub(crate) fn verdict(&self, id: WorkerId) -> Option<WorkerVerdict> {
        self.with(id, WorkerRecord::verdict)
    }
}

/// Returns the entry of this number; `entries` in the order of their numbers.
fn find(entries: &mut [WorkerRecord], id: WorkerId) -> Option<&mut WorkerRecord> {
    let at = entries
        .binary_search_by_key(&id, |entry| entry.view.id)
        .ok()?;
    entries.get_mut(at)
}

/// Returns whether ejecting this worker keeps every model served, and the ejected share within its
/// limit.
fn may_eject(max_ratio: f64, entries: &[WorkerRecord], id: WorkerId) -> bool {
    let Some(this) = entries.iter().find(|entry| entry.view.id == id) else {
        return false;
    };
    let ejected = entries
        .iter()
        .filter(|entry| entry.health.state() == WorkerState::Ejected)
        .count()
        + 1;
    #[allow(clippy::cast_precision_loss, reason = "numbers of workers")]
    let within = ejected as f64 <= max_ratio * entries.len() as f64;
    // A request can do without a prefill worker.
    let needed = !this.view.only_prefills();
    within
        && this.view.models.iter().all(|model| {
            !needed
                || entries.iter().any(|other| {
                    other.view.id != id
                        && !other.view.only_prefills()
                        && other.view.is_ready()
                        && other.view.models.iter().any(|listed| listed.id == model.id)
                })
        })
}
