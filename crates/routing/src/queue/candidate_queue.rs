//! The requests that one set of targets can serve, and when the next look at them is worth while.
//!
//! A pass goes through the requests in order and binds those that can begin. It begins when a target opens (by an event or
//! because its backlog shrank with time) and is over when the targets that opened are taken, or when nobody is left who was
//! not asked. Then nobody who waits could begin: a newcomer that can takes no one's turn.
//!
//! **Invariant**: `look_at` is set whenever a target may open without an event, and while a pass is under way.

use std::{collections::BTreeSet, mem, ops::Bound, sync::Arc};

use kv_blocks::{Moment, Target};

use super::{OrderKey, QueuedRequest, TargetGate};
use crate::Ticket;

/// Candidates priced in one pass, over all requests: what is behind waits for the next one. About half a millisecond of work,
/// of which no lock sees more than a [`super::ReleaseBudget`] at once.
const PASS_PRICED: usize = 2048;

/// A place among the requests of one queue.
pub(crate) type QueuePlace = (OrderKey, Ticket);

/// Requests that wait for the same targets.
#[derive(Debug)]
pub(crate) struct CandidateQueue {
    pub(crate) targets: Arc<[Target]>,
    order: BTreeSet<QueuePlace>,
    due: BTreeSet<(Moment, Ticket)>,
    /// When to look next though nothing is heard.
    pub(super) look_at: Option<Moment>,
    /// Targets that have opened and that the pass offers; none: no pass is under way.
    opened: BTreeSet<Target>,
    /// Open targets that nobody wanted in the last pass.
    declined: BTreeSet<Target>,
    /// Where the pass goes on.
    cursor: Option<QueuePlace>,
    /// Candidates priced in this pass.
    priced: usize,
    /// Up to where estimates were refreshed beside the passes.
    refreshed: Option<Ticket>,
    /// The requests in order of arrival.
    arrivals: BTreeSet<Ticket>,
    /// Requests with a busy threshold, and the highest threshold among them.
    thresholds: usize,
    threshold: f64,
    /// Requests that a backlog does not hold up.
    ignoring_backlog: usize,
}

impl CandidateQueue {
    pub(super) fn new(targets: Arc<[Target]>) -> Self {
        Self {
            targets,
            order: BTreeSet::new(),
            due: BTreeSet::new(),
            look_at: None,
            opened: BTreeSet::new(),
            declined: BTreeSet::new(),
            cursor: None,
            priced: 0,
            refreshed: None,
            arrivals: BTreeSet::new(),
            thresholds: 0,
            threshold: 0.0,
            ignoring_backlog: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The share of its cache above which a target can take none of them; `None`: some do not mind.
    pub(super) fn busy_threshold(&self) -> Option<f64> {
        (self.thresholds > 0 && self.thresholds == self.order.len()).then_some(self.threshold)
    }

    /// Whether there is a request with a busy threshold.
    pub(super) fn any_has_busy_threshold(&self) -> bool {
        self.thresholds > 0
    }

    /// Whether there is a request that a backlog does not hold up.
    pub(super) fn any_ignores_backlog(&self) -> bool {
        self.ignoring_backlog > 0
    }

    pub(super) fn insert(&mut self, ticket: Ticket, request: &QueuedRequest) {
        self.reposition(ticket, None, request.key);
        self.arrivals.insert(ticket);
        if !self.targets.is_empty() {
            self.due.insert((request.terms.until, ticket));
        }
        if let Some(threshold) = request.job.busy_threshold {
            self.threshold = if self.thresholds == 0 {
                threshold
            } else {
                self.threshold.max(threshold)
            };
            self.thresholds += 1;
        }
        self.ignoring_backlog += usize::from(!request.minds_backlog);
    }

    pub(super) fn remove(&mut self, ticket: Ticket, request: &QueuedRequest) {
        self.order.remove(&(request.key, ticket));
        self.arrivals.remove(&ticket);
        self.due.remove(&(request.terms.until, ticket));
        self.thresholds -= usize::from(request.job.busy_threshold.is_some());
        self.ignoring_backlog -= usize::from(!request.minds_backlog);
    }

    /// Moves a request to another place. One that comes to stand before the cursor is looked at next.
    pub(super) fn reposition(&mut self, ticket: Ticket, from: Option<OrderKey>, to: OrderKey) {
        if let Some(from) = from {
            self.order.remove(&(from, ticket));
        }
        self.order.insert((to, ticket));
        if from != Some(to) && self.cursor.is_some_and(|cursor| (to, ticket) < cursor) {
            self.cursor = Some((to, ticket));
        }
    }

    /// When the first of its requests is due.
    pub(super) fn first_due(&self) -> Option<Moment> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Requests that are due by now, the first due first.
    pub(super) fn overdue(&self, now: Moment) -> impl Iterator<Item = (Moment, Ticket)> + '_ {
        self.due
            .iter()
            .copied()
            .take_while(move |(until, _)| *until <= now)
    }

    /// An overdue request that no target can take is not bound when it is due: its caller gives it up, or a target opens.
    pub(super) fn cannot_be_bound(&mut self, ticket: Ticket, until: Moment) {
        self.due.remove(&(until, ticket));
    }

    /// `target` can take a request that it could not take before: the pass begins anew, at `then` or before. One that is under
    /// way for this target already prices no more for it than a pass may.
    pub(super) fn open(&mut self, then: Moment, target: Target) {
        self.declined.remove(&target);
        self.cursor = None;
        if self.opened.insert(target) {
            self.priced = 0;
        }
        self.look_at = Some(self.look_at.map_or(then, |at| at.min(then)));
    }

    /// More requests could be bound to `target` than one call may bind: the pass begins anew without those that were.
    pub(super) fn offer_again(&mut self, now: Moment, target: Target) {
        self.opened.insert(target);
        (self.cursor, self.priced, self.look_at) = (None, 0, Some(now));
    }

    /// `target` has something to compute, and opens at `then` if nothing is heard before.
    pub(super) fn open_at(&mut self, target: Target, then: Option<Moment>) {
        self.declined.remove(&target);
        if let Some(then) = then {
            self.look_at = Some(self.look_at.map_or(then, |at| at.min(then)));
        }
    }

    /// The first pass offers every target that is open then.
    pub(super) fn open_all(&mut self, then: Moment) {
        self.look_at = Some(then);
    }

    /// Whether the pass that is under way offers `target`.
    pub(super) fn offers(&self, target: Target) -> bool {
        self.opened.contains(&target)
    }

    /// The pass goes on as soon as others have had their turn.
    pub(super) fn resume_pass(&mut self, now: Moment) {
        self.look_at = Some(now);
    }

    /// Whether a request that could begin on `target` would go before somebody whose turn it may be.
    pub(super) fn is_contended(&self, target: Target, now: Moment) -> bool {
        let pass = if self.opened.is_empty() {
            self.look_at.is_some_and(|at| at <= now)
        } else {
            self.opened.contains(&target)
        };
        pass || self.first_due().is_some_and(|until| until <= now)
    }

    /// Sees which targets are open now; returns whether the pass has anything to offer. If it has not, it is over.
    pub(super) fn start_or_resume_pass(&mut self, now: Moment, gate: &TargetGate<'_>) -> bool {
        if self.opened.is_empty() {
            let open = |target: &Target| {
                gate.is_open(now, *target, self) && !self.declined.contains(target)
            };
            let opened: BTreeSet<Target> = self.targets.iter().copied().filter(open).collect();
            (self.opened, self.cursor, self.priced) = (opened, None, 0);
        } else {
            let mut opened = mem::take(&mut self.opened);
            opened.retain(|target| gate.is_open(now, *target, self));
            self.opened = opened;
        }
        if self.opened.is_empty() {
            self.end_pass(now, gate);
        }
        !self.opened.is_empty()
    }

    /// The next requests of the pass, as many as may be priced; the pass goes on behind them. At least one if it has any.
    pub(super) fn take_next(&mut self, most: usize) -> Vec<QueuePlace> {
        let from = self.cursor.map_or(Bound::Unbounded, Bound::Included);
        let mut next: Vec<QueuePlace> = self
            .order
            .range((from, Bound::Unbounded))
            .take(most.max(1) + 1)
            .copied()
            .collect();
        self.cursor = if next.len() > most.max(1) {
            next.pop()
        } else {
            None
        };
        self.priced += next.len() * self.targets.len();
        next
    }

    /// Whether the pass has asked everybody, or as many as it may.
    pub(super) fn is_pass_finished(&self) -> bool {
        self.cursor.is_none() || self.priced >= PASS_PRICED
    }

    /// Ends a pass. What is open still was wanted by nobody.
    pub(super) fn end_pass(&mut self, now: Moment, gate: &TargetGate<'_>) {
        self.declined.extend(mem::take(&mut self.opened));
        (self.cursor, self.priced) = (None, 0);
        self.look_at = self
            .targets
            .iter()
            .filter_map(|target| gate.opens_at(now, *target, self))
            .min();
    }

    /// Some requests whose estimate may be old, in turn.
    pub(super) fn take_stale(&mut self, most: usize) -> Vec<Ticket> {
        let from = self.refreshed.map_or(Bound::Unbounded, Bound::Excluded);
        let stale: Vec<Ticket> = self
            .arrivals
            .range((from, Bound::Unbounded))
            .take(most)
            .copied()
            .collect();
        self.refreshed = stale.last().copied();
        stale
    }
}
