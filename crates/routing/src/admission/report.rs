//! Who waits for room and why, for operators.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kv_blocks::{Moment, Target};

use super::{LentShare, RoomWait, placement::LetInRate};
use crate::{
    Router, RoutingSettings, Ticket,
    queue::{QueuedJob, RoomPlace},
    state::RouterState,
};

/// How requests that waited for room ended, since the start of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionCounts {
    /// Sent when there was room, or after admission was switched off.
    pub room: u64,
    /// Sent without room, in the time that a target lends.
    pub budget: u64,
    /// Sent without room, because the longest wait was over.
    pub overdue: u64,
    /// Refused on arrival: they would have been let in too late for their time limits.
    pub refused: u64,
}

/// The state of admission.
#[derive(Clone, Debug)]
pub struct AdmissionReport {
    /// Whether it is on.
    pub enabled: bool,
    /// How long blocks count after their request ended.
    pub keep: Duration,
    /// Share of these blocks that counts, 0 to 1: none while prompts mostly do not return.
    pub return_share: f64,
    /// Some of the targets that are followed, in their order.
    pub targets: Vec<LiveTarget>,
    /// Requests that wait for room.
    pub waiting_total: usize,
    /// Some of them: by the targets that they wait for, in the order in which they are let in without
    /// room.
    pub waiting: Vec<RoomWaiter>,
    /// How others ended.
    pub counts: AdmissionCounts,
}

/// A target's blocks in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveTarget {
    /// The target.
    pub target: Target,
    /// Blocks that it used lately.
    pub live_blocks: u64,
    /// Blocks that its cache holds; `None`: not known, and requests are not tested there.
    pub capacity: Option<u64>,
    /// Milliseconds that it may lend to requests without room; below zero after it lent some.
    pub credit_ms: f64,
}

/// A request that waits for room.
#[derive(Clone, Debug, PartialEq)]
pub struct RoomWaiter {
    /// Its number in the queue.
    pub ticket: Ticket,
    /// Its tenant.
    pub tenant: Arc<str>,
    /// The worker that lacks least room for it.
    pub worker: Arc<str>,
    /// How long it has waited since it arrived, for room or before that for something else.
    pub waited: Duration,
    /// What it waits for.
    pub wait: RoomWait,
}

impl Router {
    /// Returns the state of admission, with at most `most` targets and as many requests.
    pub fn admission_report(&self, now: Moment, most: usize) -> AdmissionReport {
        let settings = self.settings.load();
        let (report, waiting) = {
            let state = &mut *self.state.lock();
            let report = AdmissionReport {
                enabled: settings.section.admission.is_on(),
                keep: state.ledger.live.keep_time(),
                return_share: state.ledger.live.share(),
                targets: state.live_targets(now, &settings, most),
                waiting_total: state.queue.waiting_for_room(),
                waiting: Vec::new(),
                counts: state.admission,
            };
            (report, state.room_waiters(now, &settings, most))
        };
        // The names are looked up without the lock.
        AdmissionReport {
            waiting: waiting.iter().filter_map(WaiterRow::named).collect(),
            ..report
        }
    }

    /// Returns how requests that waited for room ended.
    pub fn admission_counts(&self) -> AdmissionCounts {
        self.state.lock().admission
    }

    /// Returns the number of requests that wait for room.
    pub fn requests_waiting_for_room(&self) -> usize {
        self.state.lock().queue.waiting_for_room()
    }
}

impl RouterState {
    fn live_targets(
        &mut self,
        now: Moment,
        settings: &RoutingSettings,
        most: usize,
    ) -> Vec<LiveTarget> {
        let targets = self.ledger.live.targets(most);
        let row = |target| {
            let among = self.queue.most_room_targets(target);
            let of = self.lending_target(now, settings, target, among);
            LiveTarget {
                target,
                live_blocks: self.ledger.live.blocks(now, target),
                capacity: self.ledger.live.observed_capacity(target),
                credit_ms: self.lending.credit_ms(of),
            }
        };
        targets.into_iter().map(row).collect()
    }

    fn room_waiters(&self, now: Moment, settings: &RoutingSettings, most: usize) -> Vec<WaiterRow> {
        // Of each queue, and of its requests that wait for one target only: they wait for the same.
        let mut rates = HashMap::<_, LetInRate>::new();
        let waiter = |(place, ticket): (RoomPlace, Ticket)| {
            let request = self.queue.get(ticket)?;
            let shortage = &request.room.as_ref()?.shortage;
            let only = shortage.is_bound_to_target.then_some(shortage.target);
            let rate = *rates.entry((request.queue, only)).or_insert_with(|| {
                let targets = request.job.pool.set.targets.iter().copied();
                let terms = (targets, LentShare::Wanted);
                self.let_in_rate(now, settings, (shortage, 0.0), terms)
            });
            Some(WaiterRow {
                ticket,
                job: Arc::clone(&request.job),
                waited: now.since(request.terms.since),
                wait: rate.wait_of(shortage, place),
            })
        };
        let line = self.queue.room_line(most).into_iter();
        line.filter_map(waiter).collect()
    }
}

/// A request that waits for room, without the names that its job knows.
struct WaiterRow {
    ticket: Ticket,
    job: Arc<QueuedJob>,
    waited: Duration,
    wait: RoomWait,
}

impl WaiterRow {
    fn named(&self) -> Option<RoomWaiter> {
        let mut candidates = self.job.pool.set.candidates.iter();
        let worker = candidates.find(|known| known.target == self.wait.target)?;
        Some(RoomWaiter {
            ticket: self.ticket,
            tenant: Arc::clone(self.job.job().tenant().name),
            worker: Arc::clone(&worker.name),
            waited: self.waited,
            wait: self.wait,
        })
    }
}
