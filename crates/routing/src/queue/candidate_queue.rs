//! The queued requests that one set of targets can serve, and the time of the next pass over them.
//!
//! A pass goes through the requests in order and binds the ones that can begin. It begins when a
//! target opens (by an event, or because its backlog shrank with time) and ends when the opened
//! targets are taken, or when every request was tried. After a pass no queued request could begin:
//! a new request that can begin overtakes none.
//!
//! **Invariant**: `look_at` is set whenever a target may open without an event, and while a pass is
//! running.

use std::{cmp::Reverse, collections::BTreeSet, mem, ops::Bound, sync::Arc};

use kv_blocks::{Moment, Target};

use super::{
    QueuedRequest, TargetAvailability,
    shares::TenantSlot,
    tenant_order::{GroupId, TenantOrder, TenantPosition},
};
use crate::Ticket;

/// Most candidates priced in one pass, over all requests: the rest waits for the next pass. About
/// half a millisecond of work, of which each critical section does at most a
/// [`super::ReleaseBudget`].
const PASS_PRICED: usize = 2048;

/// Requests that wait for the same targets.
#[derive(Debug)]
pub(crate) struct CandidateQueue {
    pub(crate) targets: Arc<[Target]>,
    order: TenantOrder,
    due: BTreeSet<(Moment, Ticket)>,
    /// Time of the next pass if no event comes before.
    pub(super) look_at: Option<Moment>,
    /// How many requests of all queues had been bound when the last one of this queue was; of a queue
    /// without one, when it was made.
    pub(super) last_bound: u64,
    /// Targets that have opened and that the pass offers; empty: no pass is running.
    opened: BTreeSet<Target>,
    /// Open targets that no request of the last pass could use.
    declined: BTreeSet<Target>,
    /// Candidates priced in this pass.
    priced: usize,
    /// The last request whose estimate was refreshed outside the passes.
    refreshed: Option<Ticket>,
    /// The requests in order of arrival.
    arrivals: BTreeSet<Ticket>,
    /// Requests with a busy threshold, and the highest threshold among them.
    thresholds: usize,
    threshold: f64,
    /// Number of requests that ignore backlogs.
    ignoring_backlog: usize,
}

impl CandidateQueue {
    pub(super) fn new(targets: Arc<[Target]>, last_bound: u64) -> Self {
        Self {
            targets,
            order: TenantOrder::default(),
            due: BTreeSet::new(),
            look_at: None,
            last_bound,
            opened: BTreeSet::new(),
            declined: BTreeSet::new(),
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

    /// Returns the share of cache in use above which a target can take none of the requests;
    /// `None`: some have no threshold.
    pub(super) fn busy_threshold(&self) -> Option<f64> {
        (self.thresholds > 0 && self.thresholds == self.order.len()).then_some(self.threshold)
    }

    /// Returns whether any request has a busy threshold.
    pub(super) fn any_has_busy_threshold(&self) -> bool {
        self.thresholds > 0
    }

    /// Returns whether any request ignores backlogs.
    pub(super) fn any_ignores_backlog(&self) -> bool {
        self.ignoring_backlog > 0
    }

    /// Adds a request, whose tenant has this virtual time.
    pub(super) fn insert(
        &mut self,
        ticket: Ticket,
        request: &QueuedRequest,
        tenant_virtual_ms: f64,
        added_ms: f64,
    ) {
        self.order
            .insert(position(ticket, request), tenant_virtual_ms, added_ms);
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
        self.order.remove(position(ticket, request));
        self.arrivals.remove(&ticket);
        self.due.remove(&(request.terms.until, ticket));
        self.thresholds -= usize::from(request.job.busy_threshold.is_some());
        self.ignoring_backlog -= usize::from(!request.minds_backlog);
    }

    /// Returns the request's entry in the order, to change its rank.
    pub(super) fn order(&mut self) -> &mut TenantOrder {
        &mut self.order
    }

    /// Returns the least virtual time of a tenant that waits here with this priority; `None`: none
    /// does, or there is no target that they could contend for.
    pub(super) fn least_virtual_ms(&self, band: Reverse<i32>) -> Option<f64> {
        self.order.least_virtual_ms(band)
    }

    /// Returns the tenant of all its requests with their priority; `None`: they are of several.
    pub(super) fn only_group(&self) -> Option<GroupId> {
        self.order.only_group()
    }

    /// Records the virtual time of a tenant that waits here with this priority.
    pub(super) fn set_tenant_virtual(
        &mut self,
        group: (TenantSlot, Reverse<i32>),
        virtual_ms: f64,
    ) {
        self.order.set_tenant_virtual(group, virtual_ms);
    }

    /// Returns when the first of its requests is due.
    pub(super) fn first_due(&self) -> Option<Moment> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Returns the requests that are due by now, the first due first.
    pub(super) fn overdue(&self, now: Moment) -> impl Iterator<Item = (Moment, Ticket)> + '_ {
        self.due
            .iter()
            .copied()
            .take_while(move |(until, _)| *until <= now)
    }

    /// Removes an overdue request from the due list because no target can take it: its caller
    /// cancels it, or a target opens.
    pub(super) fn cannot_be_bound(&mut self, ticket: Ticket, until: Moment) {
        self.due.remove(&(until, ticket));
    }

    /// Records that `target` can take requests again: the pass starts over, at `then` or before.
    /// The price budget of a running pass that already offers this target is not renewed.
    pub(super) fn open(&mut self, then: Moment, target: Target) {
        self.declined.remove(&target);
        self.order.restart();
        if self.opened.insert(target) {
            self.priced = 0;
        }
        self.look_at = Some(self.look_at.map_or(then, |at| at.min(then)));
    }

    /// Starts the pass over because more requests could be bound to `target` than one call may
    /// bind.
    pub(super) fn offer_again(&mut self, now: Moment, target: Target) {
        self.opened.insert(target);
        self.order.restart();
        (self.priced, self.look_at) = (0, Some(now));
    }

    /// Records that `target` has a backlog and opens at `then` if no event comes before.
    pub(super) fn open_at(&mut self, target: Target, then: Option<Moment>) {
        self.declined.remove(&target);
        if let Some(then) = then {
            self.look_at = Some(self.look_at.map_or(then, |at| at.min(then)));
        }
    }

    /// Schedules a first pass, which offers every target that is open then.
    pub(super) fn open_all(&mut self, then: Moment) {
        self.look_at = Some(then);
    }

    /// Returns whether the running pass offers `target`.
    pub(super) fn offers(&self, target: Target) -> bool {
        self.opened.contains(&target)
    }

    /// Schedules the rest of the pass after the turns of other queues.
    pub(super) fn resume_pass(&mut self, now: Moment) {
        self.look_at = Some(now);
    }

    /// Returns whether a request that could begin on `target` would overtake a queued one that may
    /// be first.
    pub(super) fn is_contended(&self, target: Target, now: Moment) -> bool {
        let pass = if self.opened.is_empty() {
            self.look_at.is_some_and(|at| at <= now)
        } else {
            self.opened.contains(&target)
        };
        pass || self.first_due().is_some_and(|until| until <= now)
    }

    /// Finds the targets that are open now; returns whether the pass has any to offer. If it has
    /// none, it ends.
    pub(super) fn start_or_resume_pass(
        &mut self,
        now: Moment,
        availability: &TargetAvailability<'_>,
    ) -> bool {
        if self.opened.is_empty() {
            let open = |target: &Target| {
                availability.is_available(now, *target, self) && !self.declined.contains(target)
            };
            let opened: BTreeSet<Target> = self.targets.iter().copied().filter(open).collect();
            (self.opened, self.priced) = (opened, 0);
            self.order.restart();
        } else {
            let mut opened = mem::take(&mut self.opened);
            opened.retain(|target| availability.is_available(now, *target, self));
            self.opened = opened;
        }
        if self.opened.is_empty() {
            self.end_pass(now, availability);
        }
        !self.opened.is_empty()
    }

    /// Returns the next requests of the pass, at most `most` but at least one if there is any.
    pub(super) fn take_next(&mut self, most: usize) -> Vec<Ticket> {
        let next = self.order.take_next(most.max(1));
        self.priced += next.len() * self.targets.len();
        next
    }

    /// Returns whether the pass has tried every request, or as many as it may.
    pub(super) fn is_pass_finished(&self) -> bool {
        self.order.is_exhausted() || self.priced >= PASS_PRICED
    }

    /// Ends a pass. Targets that are still open were of no use to any request.
    pub(super) fn end_pass(&mut self, now: Moment, availability: &TargetAvailability<'_>) {
        self.declined.extend(mem::take(&mut self.opened));
        self.priced = 0;
        self.order.restart();
        self.look_at = self
            .targets
            .iter()
            .filter_map(|target| availability.available_at(now, *target, self))
            .min();
    }

    /// Returns some requests whose estimate may be old, in turn.
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

/// Returns where a request stands in its queue.
pub(super) fn position(ticket: Ticket, request: &QueuedRequest) -> TenantPosition {
    TenantPosition {
        tenant: request.share.tenant,
        rank: request.rank,
        ticket,
    }
}
