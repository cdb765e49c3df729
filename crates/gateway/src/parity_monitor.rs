//! The parity monitor: every ended request feeds it, and it withdraws trust where predictions were
//! wrong.
//!
//! `parity` has the rules. This module connects its tracker to the fleet: engine counters go in,
//! and trust in a target's events comes out. A request only queues the change: applying it can take
//! long, and one task does that.

use std::{collections::HashMap, sync::Arc};

use fleet::Fleet;
use kv_blocks::{Moment, Target};
use net::Clock;
use parity::{
    EngineCounters, IncomparableRequest, ParityChange, ParityState, ParityTracker, PredictionSample,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The parity tracker and the fleet.
#[derive(Debug)]
pub(crate) struct ParityMonitor {
    tracker: Arc<Mutex<ParityTracker>>,
    fleet: Arc<Fleet>,
    clock: Clock,
    /// Changes to apply. At most one per target: a later one absorbs the earlier.
    changes: Mutex<HashMap<Target, ParityChange>>,
    changed: Notify,
}

impl ParityMonitor {
    pub(crate) fn new(book: Arc<Mutex<ParityTracker>>, fleet: Arc<Fleet>, clock: Clock) -> Self {
        Self {
            tracker: book,
            fleet,
            clock,
            changes: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Records a successful request to `target`; returns its cached tokens, where they are known.
    pub(crate) fn observe(&self, target: Target, sample: PredictionSample) -> Option<u32> {
        let mut book = self.tracker.lock();
        let observed = book.observe(self.clock.now(), target, sample);
        self.leave(observed.change);
        observed.actual
    }

    /// Records an incomparable request to `target`.
    pub(crate) fn record_incomparable(&self, target: Target, request: IncomparableRequest) {
        self.tracker
            .lock()
            .record_incomparable(self.clock.now(), target, request);
    }

    /// Advances the time.
    pub(crate) fn tick(&self, now: Moment) {
        let counters = self.fleet.prefix_cache_counters();
        let restarts = self.fleet.stream_restarts();
        for target in self
            .fleet
            .snapshot()
            .workers
            .iter()
            .flat_map(|worker| worker.targets())
        {
            let told = counters.get(&target).map(|told| EngineCounters {
                at: told.at,
                queries: told.queries,
                hits: told.hits,
            });
            let mut book = self.tracker.lock();
            let change = book.tick(now, target, told, restarts.get(&target).copied());
            self.leave(change);
        }
    }

    /// Queues a change. Called with the tracker locked: changes of one target stay in their order.
    fn leave(&self, change: Option<ParityChange>) {
        let Some(change) = change else { return };
        let mut changes = self.changes.lock();
        let change = match changes.remove(&change.target) {
            Some(earlier) => change.after(&earlier),
            None => change,
        };
        changes.insert(change.target, change);
        self.changed.notify_one();
    }

    /// Waits until [`Self::apply_changes`] has work.
    pub(crate) async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// Applies the queued changes. For one caller at a time: of two changes of one target the later
    /// must come last.
    pub(crate) fn apply_changes(&self) {
        // One at a time: a panic costs one change, and not the queued ones.
        while let Some(change) = self.next_change() {
            if let Some(trusted) = change.trust() {
                self.fleet.trust(change.target, trusted);
            }
            self.tell(&change);
        }
    }

    fn next_change(&self) -> Option<ParityChange> {
        let mut changes = self.changes.lock();
        let target = *changes.keys().next()?;
        changes.remove(&target)
    }

    fn tell(&self, change: &ParityChange) {
        let ParityChange {
            target,
            from,
            to,
            ratio,
            reason,
        } = change;
        let snapshot = self.fleet.snapshot();
        let worker = snapshot
            .worker(target.worker)
            .map_or("unknown", |worker| &*worker.name);
        let (rank, from, ratio, state) = (target.rank.0, from.as_str(), *ratio, to.as_str());
        match (change.from, to) {
            (_, ParityState::Drifting | ParityState::Downgraded) => {
                tracing::warn!(
                    worker,
                    rank,
                    from,
                    state,
                    ratio,
                    reason,
                    "predictions do not hold"
                );
            }
            // Comes and goes with the traffic.
            (ParityState::NoData | ParityState::Ok, _) => {
                tracing::debug!(
                    worker,
                    rank,
                    from,
                    state,
                    ratio,
                    reason,
                    "predictions are judged anew"
                );
            }
            _ => tracing::info!(
                worker,
                rank,
                from,
                state,
                ratio,
                reason,
                "predictions are judged anew"
            ),
        }
    }
}
