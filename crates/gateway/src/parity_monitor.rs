//! Predictions beside what came of them: fed by every request that ends, acted on where they were wrong.
//!
//! The rules are `parity`'s. Here its book meets the fleet: engines' counters go in, a target's events are believed or
//! not as comes out. Requests only leave the change behind: what it asks for can take long, and one task does it.

use std::{collections::HashMap, sync::Arc};

use fleet::Fleet;
use kv_blocks::{Moment, Target};
use net::Clock;
use parity::{
    EngineCounters, IncomparableRequest, ParityChange, ParityState, ParityTracker, PredictionSample,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The book and the fleet that it speaks of.
#[derive(Debug)]
pub(crate) struct ParityMonitor {
    tracker: Arc<Mutex<ParityTracker>>,
    fleet: Arc<Fleet>,
    clock: Clock,
    /// Not acted on yet. At most one per target: a later one takes in the earlier.
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

    /// A request that went to `target` ended well; its cached tokens, where they are known.
    pub(crate) fn observe(&self, target: Target, sample: PredictionSample) -> Option<u32> {
        let mut book = self.tracker.lock();
        let observed = book.observe(self.clock.now(), target, sample);
        self.leave(observed.change);
        observed.actual
    }

    /// A request that went to `target` is over and cannot be judged.
    pub(crate) fn record_incomparable(&self, target: Target, request: IncomparableRequest) {
        self.tracker
            .lock()
            .record_incomparable(self.clock.now(), target, request);
    }

    /// Time has passed.
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

    /// Called with the book locked: changes of one target are left in the order in which they were found.
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

    /// Waits until there is something for [`Judge::act`].
    pub(crate) async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// Does what changes ask for. For one caller at a time: of two changes of one target the later is to come last.
    pub(crate) fn apply_changes(&self) {
        // One at a time: a panic costs one change, and not those that wait behind it.
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
