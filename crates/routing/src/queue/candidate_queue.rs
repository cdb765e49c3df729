//! The queued requests that one set of targets can serve, and the time of the next pass over them.
//!
//! A pass goes through the requests in order and binds the ones that can begin. It begins when a
//! target opens (by an event, or because its backlog shrank with time) and ends when the opened
//! targets are taken, or when every request was tried. A target that opens with time while a pass
//! runs, or is due, has a pass of its own behind it. After the last one no queued request could
//! begin: a new request that can begin overtakes none.
//!
//! **Invariant**: `look_at` is set whenever a target may open without an event, or has and was not
//! offered, and while a pass is running.

use std::{cmp::Reverse, collections::BTreeSet, mem, ops::Bound, sync::Arc};

use kv_blocks::{Moment, Target};

use super::{
    QueuedRequest, RequestRank, TargetAvailability,
    passed_over::PassedOver,
    room_line::RoomLine,
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
    /// The requests that wait for room, which are not in the order.
    room: RoomLine,
    deadlines: Deadlines,
    /// Time of the next pass if no event comes before.
    pub(super) look_at: Option<Moment>,
    /// How many requests of all queues had been bound when the last one of this queue was; of a queue
    /// without one, when it was made.
    pub(super) last_bound: u64,
    /// Targets that have opened and that the pass offers; empty: no pass is running.
    opened: BTreeSet<Target>,
    /// Open targets that no request of the last pass could use.
    declined: BTreeSet<Target>,
    /// The requests that the pass has tried and left; those of the last pass until the next begins.
    pub(super) passed_over: PassedOver,
    /// Candidates priced in this pass.
    priced: usize,
    /// The last request whose estimate was refreshed outside the passes.
    refreshed: Option<Ticket>,
    /// The requests in order of arrival.
    arrivals: BTreeSet<Ticket>,
    thresholds: BusyThresholds,
    /// Number of requests that ignore backlogs.
    ignoring_backlog: usize,
}

/// The moments that matter to the requests of a queue, in order.
#[derive(Debug, Default)]
struct Deadlines {
    /// When each is bound at the latest.
    due: BTreeSet<(Moment, Ticket)>,
    /// When one of the order has to begin at the latest to meet its target, as long as it can.
    start_by: BTreeSet<(Moment, Ticket)>,
}

/// The busy thresholds of the requests of a queue.
#[derive(Clone, Copy, Debug, Default)]
struct BusyThresholds {
    /// Number of requests with one.
    requests: usize,
    /// The highest among them.
    highest: f64,
}

impl CandidateQueue {
    pub(super) fn new(targets: Arc<[Target]>, last_bound: u64) -> Self {
        Self {
            targets,
            order: TenantOrder::default(),
            room: RoomLine::default(),
            deadlines: Deadlines::default(),
            look_at: None,
            last_bound,
            opened: BTreeSet::new(),
            declined: BTreeSet::new(),
            passed_over: PassedOver::default(),
            priced: 0,
            refreshed: None,
            arrivals: BTreeSet::new(),
            thresholds: BusyThresholds::default(),
            ignoring_backlog: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len() + self.room.len()
    }

    /// Returns the requests that wait for room.
    pub(super) fn room(&self) -> &RoomLine {
        &self.room
    }

    /// Returns the requests that wait for room and are tried next, some `most` and at least the first and
    /// another one.
    pub(super) fn take_for_room(&mut self, most: usize) -> Vec<Ticket> {
        self.room.take_next(most)
    }

    /// Returns the share of cache in use above which a target can take none of the requests;
    /// `None`: some have no threshold.
    pub(super) fn busy_threshold(&self) -> Option<f64> {
        let BusyThresholds { requests, highest } = self.thresholds;
        (requests > 0 && requests == self.len()).then_some(highest)
    }

    /// Returns whether any request has a busy threshold.
    pub(super) fn any_has_busy_threshold(&self) -> bool {
        self.thresholds.requests > 0
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
        match &request.room {
            Some(room) if request.waits_for_room => {
                let at = (request.terms.since, ticket);
                let terms = (room.shortage.prefill_ms, tenant_virtual_ms);
                self.room.insert(group(request), at, terms);
            }
            _ => self.insert_in_order(ticket, request, (tenant_virtual_ms, added_ms)),
        }
        self.arrivals.insert(ticket);
        if !self.targets.is_empty() {
            self.deadlines.due.insert((request.terms.until, ticket));
        }
        if let Some(threshold) = request.job.busy_threshold {
            let known = &mut self.thresholds;
            known.highest = if known.requests == 0 {
                threshold
            } else {
                known.highest.max(threshold)
            };
            known.requests += 1;
        }
        self.ignoring_backlog += usize::from(!request.minds_backlog);
    }

    pub(super) fn remove(&mut self, ticket: Ticket, request: &QueuedRequest) {
        if request.waits_for_room {
            self.room
                .remove(group(request), (request.terms.since, ticket));
        } else {
            self.remove_from_order(position(ticket, request), request.terms.start_by());
        }
        self.arrivals.remove(&ticket);
        self.passed_over.remove(ticket);
        self.deadlines.due.remove(&(request.terms.until, ticket));
        self.thresholds.requests -= usize::from(request.job.busy_threshold.is_some());
        self.ignoring_backlog -= usize::from(!request.minds_backlog);
    }

    /// Gives a request its place in the order. Its tenant has this virtual time, to which it adds so
    /// much.
    pub(super) fn insert_in_order(
        &mut self,
        ticket: Ticket,
        request: &QueuedRequest,
        (tenant_virtual_ms, added_ms): (f64, f64),
    ) {
        self.order
            .insert(position(ticket, request), tenant_virtual_ms, added_ms);
        let feasible = request.terms.start_by().filter(|_| !request.rank.is_late);
        self.deadlines
            .start_by
            .extend(feasible.map(|last| (last, ticket)));
    }

    /// Takes a request out of the order, in which it has this place; `start_by`: the last moment at
    /// which it can begin and meet its target.
    pub(super) fn remove_from_order(&mut self, at: TenantPosition, start_by: Option<Moment>) {
        self.order.remove(at);
        if let Some(last) = start_by {
            self.deadlines.start_by.remove(&(last, at.ticket));
        }
    }

    /// Returns requests that have lost their slack since the last call, at most `most`.
    pub(super) fn too_late(&self, now: Moment, most: usize) -> Vec<Ticket> {
        let start_by = self.deadlines.start_by.iter();
        let late = start_by.take_while(|(last, _)| *last < now);
        late.take(most).map(|(_, ticket)| *ticket).collect()
    }

    /// Returns the requests of a tenant that are before a new one with this rank, in order.
    pub(super) fn before(
        &self,
        tenant: TenantSlot,
        rank: RequestRank,
    ) -> impl Iterator<Item = Ticket> + '_ {
        self.order.before(tenant, rank)
    }

    /// Returns the least virtual time of a tenant that waits here with this priority; `None`: none
    /// does, or there is no target that they could contend for.
    pub(super) fn least_virtual_ms(&self, band: Reverse<i32>) -> Option<f64> {
        let waiting = [
            self.order.least_virtual_ms(band),
            self.room.least_virtual_ms(band),
        ];
        waiting.into_iter().flatten().min_by(f64::total_cmp)
    }

    /// Returns whether any of its requests waits for a target that can begin, and not for room.
    pub(super) fn is_contended_for(&self) -> bool {
        self.order.len() > 0
    }

    /// Returns the tenant of all requests that wait for a target that can begin, with their priority;
    /// `None`: they are of several.
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
        self.room.set_tenant_virtual(group, virtual_ms);
    }

    /// Returns when the first of its requests is due.
    pub(super) fn first_due(&self) -> Option<Moment> {
        self.deadlines.due.first().map(|(until, _)| *until)
    }

    /// Returns the requests that are due by now, the first due first.
    pub(super) fn overdue(&self, now: Moment) -> impl Iterator<Item = (Moment, Ticket)> + '_ {
        self.deadlines
            .due
            .iter()
            .copied()
            .take_while(move |(until, _)| *until <= now)
    }

    /// Removes an overdue request from the due list because no target can take it: its caller
    /// cancels it, or a target opens.
    pub(super) fn cannot_be_bound(&mut self, ticket: Ticket, until: Moment) {
        self.deadlines.due.remove(&(until, ticket));
    }

    /// Records that `target` can take requests again: the pass starts over, at `then` or before.
    /// The price budget of a running pass that already offers this target is not renewed.
    pub(super) fn open(&mut self, then: Moment, target: Target) {
        self.declined.remove(&target);
        self.start_over();
        if self.opened.insert(target) {
            self.priced = 0;
        }
        self.look_at = Some(self.look_at.map_or(then, |at| at.min(then)));
    }

    /// Starts the pass over because more requests could be bound to `target` than one call may
    /// bind.
    pub(super) fn offer_again(&mut self, now: Moment, target: Target) {
        self.opened.insert(target);
        self.start_over();
        (self.priced, self.look_at) = (0, Some(now));
    }

    /// Lets the pass begin with the first request.
    fn start_over(&mut self) {
        self.order.restart();
        self.passed_over.clear();
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

    /// Schedules a first pass for when a target opens with time: the first request chose among those
    /// that are open now, and waits.
    pub(super) fn open_with_time(&mut self, now: Moment, availability: &TargetAvailability<'_>) {
        self.look_at = self.next_opening(now, availability);
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
            let opened: BTreeSet<Target> = self.unoffered(now, availability).collect();
            (self.opened, self.priced) = (opened, 0);
            self.start_over();
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

    /// Returns the number of requests that the pass has tried.
    pub(super) fn tried(&self) -> usize {
        self.priced / self.targets.len().max(1)
    }

    /// Returns whether the pass has tried every request, or as many as it may.
    pub(super) fn is_pass_finished(&self) -> bool {
        self.order.is_exhausted() || self.priced >= PASS_PRICED
    }

    /// Ends a pass. Targets that are still open were of no use to any request. If another one has
    /// opened with time since the pass began, the next pass is due at once: no event will offer it.
    pub(super) fn end_pass(&mut self, now: Moment, availability: &TargetAvailability<'_>) {
        self.declined.extend(mem::take(&mut self.opened));
        self.priced = 0;
        self.order.restart();
        let is_due = self.unoffered(now, availability).next().is_some();
        self.look_at = if is_due {
            Some(now)
        } else {
            self.next_opening(now, availability)
        };
    }

    /// Returns the open targets that no pass has offered since they opened.
    fn unoffered(
        &self,
        now: Moment,
        availability: &TargetAvailability<'_>,
    ) -> impl Iterator<Item = Target> {
        let open = move |target: &Target| {
            !self.declined.contains(target) && availability.is_available(now, *target, self)
        };
        self.targets.iter().copied().filter(open)
    }

    /// Returns when the next target opens if no event comes before.
    fn next_opening(&self, now: Moment, availability: &TargetAvailability<'_>) -> Option<Moment> {
        let targets = self.targets.iter();
        targets
            .filter_map(|target| availability.available_at(now, *target, self))
            .min()
    }

    /// Returns some requests whose estimate may be old, in turn. The turn goes from the newest to the
    /// oldest: these are mostly bound one after the other, and in their order a turn that advances as
    /// fast would only ever return the one that is bound next.
    pub(super) fn take_stale(&mut self, most: usize) -> Vec<Ticket> {
        let until = self.refreshed.map_or(Bound::Unbounded, Bound::Excluded);
        let older = self.arrivals.range((Bound::Unbounded, until)).rev();
        let stale: Vec<Ticket> = older.take(most).copied().collect();
        self.refreshed = stale.last().copied();
        stale
    }
}

/// Returns the tenant of a request with its priority.
fn group(request: &QueuedRequest) -> GroupId {
    (request.share.tenant, request.rank.band)
}

/// Returns where a request stands in its queue.
pub(super) fn position(ticket: Ticket, request: &QueuedRequest) -> TenantPosition {
    TenantPosition {
        tenant: request.share.tenant,
        rank: request.rank,
        ticket,
    }
}
