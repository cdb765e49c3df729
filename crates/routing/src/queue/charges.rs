//! The work that tenants are charged with.

use std::cmp::Reverse;

use kv_blocks::Target;

use super::{QueueEnd, QueuedShare, RequestWork, TenantSlot, WaitQueue, least_virtual};
use crate::{JobTenant, ReservationId};

impl WaitQueue {
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
        let queues = self.queues.with(target);
        let mut queues = queues.filter(|queue| queue.is_contended_for()).peekable();
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
}
