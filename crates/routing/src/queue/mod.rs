//! The queue of requests that wait in the router instead of at an engine.
//!
//! An engine computes prompts in the order of arrival: a request that is bound to a busy engine
//! waits behind a long prompt though another engine may be free before. Here it waits until a
//! target can begin, and the shortest go first. There is one queue for each set of targets that can
//! serve a request, so a saturated model delays no other; the order within all of them is one
//! function, [`OrderTerms::key`]. A request that has used up its wait budget is bound whatever the
//! backlog of its target.
//!
//! This module neither reads the index nor computes costs: `release` does, for a bounded number of
//! requests at a time.
//!
//! **Invariant**: entries and bytes are bounded, and a ticket leaves exactly once: released or
//! cancelled.

mod availability;
mod candidate_queue;
mod candidate_queues;
mod candidate_set;
mod entry;
mod order;
mod pick;
mod request;
mod settings;
mod shares;
mod tenant_order;
mod work;

use std::{cmp::Reverse, collections::BTreeMap, hash::RandomState, sync::Arc, time::Duration};

use kv_blocks::{Moment, Target};

pub(crate) use self::{
    availability::TargetAvailability,
    candidate_set::{CandidateSet, CandidateSets, fingerprint, shared},
    entry::{QueueEntry, WaitTerms},
    order::{OrderTerms, RequestRank, engine_priority},
    pick::{RELEASE_BUDGET, ReleaseCandidate},
    request::{QueueId, QueuedJob, QueuedRequest},
    shares::{QueueEnd, QueuedShare},
    work::{RequestWork, decode_ms},
};
use self::{
    candidate_queue::{CandidateQueue, position},
    candidate_queues::CandidateQueues,
    order::OrderKey,
    shares::{QueueBand, TenantShares, TenantSlot},
};
pub use self::{
    settings::{QueueLimit, QueueSettings, WaitBudget, WaitReason},
    work::ReportedWork,
};
use crate::{JobTenant, ReservationId, Ticket};

/// Longest delay before requests with changed candidates are offered to new targets. The change of
/// the fleet affects other requests too, and all of them have to be in the queue before the first
/// one is released: the last one that leaves the old targets ends the delay.
const MOVE_TIME: Duration = Duration::from_millis(250);

/// All queued requests.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// Ordered, because a hash table that grows moves all entries under the lock.
    requests: BTreeMap<Ticket, QueuedRequest>,
    queues: CandidateQueues,
    sets: CandidateSets,
    shares: TenantShares,
    bytes: u64,
    tickets: u64,
}

impl WaitQueue {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&QueuedRequest> {
        self.requests.get(&ticket)
    }

    /// Returns the number of queued requests of a tenant.
    pub(crate) fn len_of(&self, tenant: &str) -> usize {
        self.shares.queued(tenant)
    }

    /// Returns the rank of a queued request.
    pub(crate) fn key(&self, now: Moment, ageing: f64, ticket: Ticket) -> Option<OrderKey> {
        let request = self.requests.get(&ticket)?;
        let tenant_virtual_ms = self.shares.virtual_ms(request.share);
        Some(request.terms.key(now, ageing, tenant_virtual_ms))
    }

    /// Returns whether one more request of a tenant fits that retains this many bytes.
    pub(crate) fn has_capacity(
        &self,
        settings: &QueueSettings,
        tenant: &JobTenant<'_>,
        bytes: u64,
    ) -> Result<(), QueueLimit> {
        self.shares.has_capacity(tenant)?;
        let fits = self.requests.len() < settings.max_entries
            && self.bytes.saturating_add(bytes) <= settings.max_bytes;
        if fits {
            Ok(())
        } else {
            Err(QueueLimit::Router)
        }
    }

    /// Returns the hasher of candidate lists.
    pub(crate) fn hasher(&self) -> RandomState {
        self.sets.hasher()
    }

    /// Returns the candidate lists that may be equal to one with this fingerprint.
    pub(crate) fn alike(&self, fingerprint: u64) -> Vec<Arc<CandidateSet>> {
        self.sets.alike(fingerprint)
    }

    /// Adds a job, if there is capacity.
    pub(crate) fn push(
        &mut self,
        now: Moment,
        settings: &QueueSettings,
        availability: TargetAvailability<'_>,
        entrant: QueueEntry,
    ) -> Result<Ticket, QueueLimit> {
        let QueueEntry {
            job,
            mut terms,
            work,
            minds_backlog,
            caller_bytes,
            winner,
        } = entrant;
        let bytes = caller_bytes.saturating_add(job.own_bytes());
        let lists: u64 = job
            .sets()
            .filter(|set| !self.sets.knows(set))
            .map(|set| set.bytes())
            .sum();
        let tenant = job.job().tenant();
        self.has_capacity(settings, &tenant, bytes.saturating_add(lists))?;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let share = self.shares.queue(&tenant, work);
        terms.program_start_ms = share.program_start_ms();
        let queue = self.queues.queue_of(
            now,
            availability,
            &job.pool.set.targets,
            winner.is_none().then_some(now),
        );
        self.enter(
            ticket,
            QueuedRequest {
                rank: terms.rank(settings.ageing),
                terms,
                share,
                bytes,
                queue,
                job: Arc::new(job),
                minds_backlog,
            },
            None,
        );
        if let Some(winner) = winner {
            self.queues.change(queue, |queue| {
                match availability.is_available(now, winner, queue) {
                    // A request inserted before the cursor is tried next as well.
                    true if queue.offers(winner) => {}
                    true => queue.open(now, winner),
                    false => queue.open_at(winner, availability.available_at(now, winner, queue)),
                }
            });
        }
        Ok(ticket)
    }

    /// Replaces the candidates of a queued request, which keeps its position. New targets are offered
    /// when no request waits for the old ones any more, after [`MOVE_TIME`] at the latest.
    /// `false`: it is not queued.
    pub(crate) fn replace(
        &mut self,
        now: Moment,
        availability: TargetAvailability<'_>,
        ticket: Ticket,
        (job, until, minds_backlog): (QueuedJob, Moment, bool),
    ) -> bool {
        let Some(mut request) = self.take(ticket) else {
            return false;
        };
        let before = Arc::clone(&request.job.pool.set.targets);
        // A change of the fleet is no return from a time without requests.
        let moved_ms = (!before.is_empty()).then(|| self.shares.virtual_ms(request.share));
        request.bytes = request
            .bytes
            .saturating_sub(request.job.own_bytes())
            .saturating_add(job.own_bytes());
        let targets = Arc::clone(&job.pool.set.targets);
        let all_moved = self.queues.get(request.queue).is_none();
        let offered = if all_moved { now } else { now + MOVE_TIME };
        let queue = self
            .queues
            .queue_of(now, availability, &targets, Some(offered));
        (request.job, request.minds_backlog, request.queue) = (Arc::new(job), minds_backlog, queue);
        request.terms.until = until;
        self.enter(ticket, request, moved_ms);
        let added = targets
            .iter()
            .filter(|target| before.binary_search(target).is_err());
        self.queues.change(queue, |queue| {
            for target in added {
                if availability.is_available(now, *target, queue)
                    && (all_moved || !queue.offers(*target))
                {
                    queue.open(offered, *target);
                }
            }
        });
        true
    }

    /// Removes a request for this reason.
    pub(crate) fn remove(&mut self, ticket: Ticket, end: QueueEnd) -> Option<QueuedRequest> {
        if end == QueueEnd::Bound {
            let id = self.requests.get(&ticket)?.queue;
            self.queues.record_bound(id);
        }
        let request = self.take(ticket)?;
        self.shares
            .unqueue(request.share, end, &least_virtual(&self.queues));
        Some(request)
    }

    /// Takes a request out of its queue.
    fn take(&mut self, ticket: Ticket) -> Option<QueuedRequest> {
        let request = self.requests.remove(&ticket)?;
        let lists: u64 = request.job.sets().map(|set| self.sets.release(set)).sum();
        self.bytes = self
            .bytes
            .saturating_sub(request.bytes)
            .saturating_sub(lists);
        self.queues
            .change(request.queue, |queue| queue.remove(ticket, &request));
        if !request.job.pool.set.targets.is_empty() {
            let queue = (request.queue, request.rank.band);
            self.shares.leave(request.share, queue);
        }
        self.queues.drop_if_empty(request.queue);
        Some(request)
    }

    /// Records a new estimate.
    pub(crate) fn refresh(&mut self, ticket: Ticket, uncached_ms: f64, settings: &QueueSettings) {
        let Some(request) = self.requests.get_mut(&ticket) else {
            return;
        };
        request.terms.uncached_ms = uncached_ms;
        let rank = request.terms.rank(settings.ageing);
        if request.rank == rank {
            return;
        }
        let before = position(ticket, request);
        request.rank = rank;
        // No scheduled time of the queue changes.
        if let Some(queue) = self.queues.get_mut(request.queue) {
            let order = queue.order();
            order.remove(before);
            order.insert(
                position(ticket, request),
                self.shares.virtual_ms(request.share),
                self.shares.added_ms(request.share),
            );
        }
    }

    /// Charges a tenant with the work of a reservation. `waited`: the request, if it was queued.
    pub(crate) fn charge(
        &mut self,
        id: ReservationId,
        (tenant, waited): (&JobTenant<'_>, Option<QueuedShare>),
        work: RequestWork,
    ) {
        let slot = self
            .shares
            .charge(id, (tenant, waited), work, &least_virtual(&self.queues));
        self.update_rank(slot);
    }

    /// Returns whether a request may begin on `target` although requests wait for it: all of them are
    /// of a tenant with far more requests in flight, and have no higher priority, while its own
    /// tenant is not ahead of them.
    ///
    /// It starts where the first of them stands, or before, and so is among the next of the queue
    /// anyway: only the time until the target has next to nothing to compute is saved. A request that
    /// is sent to a busy engine only then begins a whole step later than one that is already there.
    /// Charged with its work, its tenant is ahead of them, and has no other such request until one of
    /// them is bound.
    pub(crate) fn may_begin_early(
        &self,
        tenant: &JobTenant<'_>,
        priority: i32,
        target: Target,
    ) -> bool {
        let least = least_virtual(&self.queues);
        let is_behind = |(other, band): (TenantSlot, Reverse<i32>)| {
            band >= Reverse(priority) && self.shares.is_far_below(tenant, other, &least)
        };
        let mut queues = self.queues.with(target).peekable();
        queues.peek().is_some() && queues.all(|queue| queue.only_group().is_some_and(is_behind))
    }

    /// Charges a tenant with the work of a reservation on `target` whose request began early: as if
    /// it had waited with the others. Otherwise time without requests would be credit.
    pub(crate) fn charge_early(
        &mut self,
        id: ReservationId,
        (tenant, priority): (&JobTenant<'_>, i32),
        target: Target,
        work: RequestWork,
    ) {
        let Some(queue) = self.queues.ids_with(target).first().copied() else {
            self.charge(id, (tenant, None), work);
            return;
        };
        let band = (queue, Reverse(priority));
        let share = self.shares.queue(tenant, work);
        let least = |band| self.queues.least_contending_ms(band);
        let share = self.shares.enter(share, (band, None), &least);
        self.shares.leave(share, band);
        self.shares.unqueue(share, QueueEnd::Bound, &least);
        self.charge(id, (tenant, Some(share)), work);
    }

    /// Returns the work that a reservation is charged with.
    pub(crate) fn charged(&self, id: ReservationId) -> Option<RequestWork> {
        self.shares.charged(id)
    }

    /// Replaces the work that a reservation is charged with.
    pub(crate) fn replace_charge(&mut self, id: ReservationId, work: RequestWork) {
        if let Some(slot) = self.shares.replace_charge(id, work) {
            self.update_rank(slot);
        }
    }

    /// Ends the charge of a reservation; `reached`: whether its request reached an engine.
    pub(crate) fn end_charge(&mut self, id: ReservationId, reached: bool) {
        let tenant = self
            .shares
            .end_charge(id, reached, &least_virtual(&self.queues));
        if let Some(slot) = tenant {
            self.update_rank(slot);
        }
    }

    /// Moves the requests of a tenant to their place by its virtual time. No scheduled time changes.
    fn update_rank(&mut self, tenant: TenantSlot) {
        for ((id, band), virtual_ms) in self.shares.queues_of(tenant) {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.set_tenant_virtual((tenant, band), virtual_ms);
            }
        }
    }

    /// Records that no target has capacity for an overdue request: it starts when one has, or its
    /// caller cancels it.
    pub(crate) fn cannot_be_bound(&mut self, ticket: Ticket) {
        if let Some(request) = self.requests.get(&ticket) {
            let until = request.terms.until;
            self.queues
                .change(request.queue, |queue| queue.cannot_be_bound(ticket, until));
        }
    }

    /// Records that a request that could be bound to `target` was not, because enough were.
    pub(crate) fn offer_again(&mut self, now: Moment, ticket: Ticket, target: Target) {
        if let Some(id) = self.requests.get(&ticket).map(|request| request.queue) {
            self.queues
                .change(id, |queue| queue.offer_again(now, target));
        }
    }

    /// Records that work ended on `target`: changes only the queues to which it belongs.
    pub(crate) fn target_changed(
        &mut self,
        now: Moment,
        target: Target,
        availability: TargetAvailability<'_>,
    ) {
        self.changed(now, target, availability, |_| true);
    }

    /// Records that the share of the cache of `target` in use changed: changes only the queues with
    /// busy thresholds.
    pub(crate) fn usage_changed(
        &mut self,
        now: Moment,
        target: Target,
        availability: TargetAvailability<'_>,
    ) {
        self.changed(
            now,
            target,
            availability,
            CandidateQueue::any_has_busy_threshold,
        );
    }

    fn changed(
        &mut self,
        now: Moment,
        target: Target,
        availability: TargetAvailability<'_>,
        minds: impl Fn(&CandidateQueue) -> bool,
    ) {
        for id in self.queues.ids_with(target) {
            self.queues.change(id, |queue| {
                if !minds(queue) {
                    return;
                }
                if availability.is_available(now, target, queue) {
                    queue.open(now, target);
                } else {
                    queue.open_at(target, availability.available_at(now, target, queue));
                }
            });
        }
    }

    /// Records that `target` was given a request.
    pub(crate) fn target_taken(
        &mut self,
        now: Moment,
        target: Target,
        availability: TargetAvailability<'_>,
    ) {
        for id in self.queues.ids_with(target) {
            self.queues.change(id, |queue| {
                if !availability.is_available(now, target, queue) {
                    queue.open_at(target, availability.available_at(now, target, queue));
                }
            });
        }
    }

    /// Returns whether a request that could begin on `target` would overtake a queued one that may
    /// be first.
    pub(crate) fn is_contended(&self, target: Target, now: Moment) -> bool {
        self.queues.is_contended(target, now)
    }

    /// Returns when the next work is due; at once if that is not after now.
    pub(crate) fn next_work(&self) -> Option<Moment> {
        self.queues.next_work()
    }

    /// Adds a request to its queue. `moved_ms`: the virtual time of its tenant in the queue from which
    /// it is moved.
    fn enter(&mut self, ticket: Ticket, mut request: QueuedRequest, moved_ms: Option<f64>) {
        let lists: u64 = request.job.sets().map(|set| self.sets.retain(set)).sum();
        self.bytes = self
            .bytes
            .saturating_add(request.bytes)
            .saturating_add(lists);
        if !request.job.pool.set.targets.is_empty() {
            let queue = (request.queue, request.rank.band);
            let least = |band| self.queues.least_contending_ms(band);
            request.share = self.shares.enter(request.share, (queue, moved_ms), &least);
        }
        let virtual_ms = self.shares.virtual_ms(request.share);
        let added_ms = self.shares.added_ms(request.share);
        self.queues.change(request.queue, |queue| {
            queue.insert(ticket, &request, virtual_ms, added_ms);
        });
        self.requests.insert(ticket, request);
    }
}

/// Returns what tells the least virtual time of those that wait in a queue with a priority.
fn least_virtual(queues: &CandidateQueues) -> impl Fn(QueueBand) -> Option<f64> + '_ {
    |(id, band)| queues.get(id)?.least_virtual_ms(band)
}
