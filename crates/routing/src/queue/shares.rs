//! What each tenant has received of the fleet, over its weight: its virtual time.
//!
//! Start-time fair queueing: of the tenants that wait, the one with the least virtual time is next.
//! A request adds the work that it causes, over the tenant's weight, when it is bound, whether it
//! waited or not; at its end the estimate is replaced by the work that the engine reported. A tenant
//! that was idle starts where the others are: time without requests is no credit. Weights change no
//! more than the order, so no target is idle while a request waits that it could begin.
//!
//! Inside a tenant the same holds for its programs, as long as they have requests: a request starts
//! where the earlier ones of its program finish, and this adds to its length. A request without a
//! program, or one whose program has no other request, starts where the tenant's programs are.
//!
//! All of this is of one router: the load of other replicas is in the ledger, and adds to no tenant.
//!
//! **Invariant**: a bound request adds its work once, and its end replaces or keeps it once. State is
//! kept for tenants with requests, and for at most [`MOST_AHEAD`] idle ones that are ahead; for any
//! other idle tenant it would be equal to none.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::{QueueId, QueueLimit, RequestWork};
use crate::{JobTenant, ReservationId};

/// Most work, in milliseconds at weight 1, by which a tenant that comes back is behind the others for
/// what it received before: its requests at most wait for so much work of each other tenant.
const LONGEST_LEAD_MS: f64 = 60_000.0;

/// Most idle tenants that are remembered because they are ahead; beyond them the oldest is dropped.
const MOST_AHEAD: usize = 4096;

/// The number of a tenant with requests; reused when it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TenantSlot(u32);

impl TenantSlot {
    pub(super) const FIRST: Self = Self(0);

    #[cfg(test)]
    pub(super) fn numbered(number: u32) -> Self {
        Self(number)
    }
}

/// The tenants' virtual times, and the work that each request in flight is charged with.
#[derive(Debug, Default)]
pub(crate) struct TenantShares {
    slots: HashMap<Arc<str>, TenantSlot, FixedState>,
    shares: Vec<TenantShare>,
    free: Vec<TenantSlot>,
    /// Idle tenants that are ahead, the one that has been so for longest first.
    ahead: VecDeque<TenantSlot>,
    /// The greatest virtual time at which a request was bound.
    virtual_ms: f64,
    /// One for each reservation that this router opened for a request.
    charges: HashMap<ReservationId, Charge, FixedState>,
}

#[derive(Debug)]
struct TenantShare {
    name: Arc<str>,
    weight: f64,
    virtual_ms: f64,
    queued: usize,
    /// The queues with targets in which it has requests, with their number.
    queues: BTreeMap<QueueId, usize>,
    in_flight: usize,
    /// Programs with requests; at most as many as those.
    programs: HashMap<u64, ProgramWork, FixedState>,
    /// The greatest start of a request that was bound, in its program's work.
    programs_ms: f64,
    is_listed_ahead: bool,
}

/// The work of a program that has requests.
#[derive(Clone, Copy, Debug, Default)]
struct ProgramWork {
    /// Where the next request starts.
    finish_ms: f64,
    requests: usize,
}

/// A request's place in the work of its program.
#[derive(Clone, Copy, Debug)]
struct ProgramPlace {
    program: Option<u64>,
    start_ms: f64,
}

/// The part of a queued request in its tenant's share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedShare {
    pub(super) tenant: TenantSlot,
    /// Its estimated work.
    work_ms: f64,
    place: ProgramPlace,
}

/// The work that a request in flight is charged with.
#[derive(Debug)]
struct Charge {
    tenant: TenantSlot,
    work: RequestWork,
    place: ProgramPlace,
}

impl TenantShares {
    /// Returns the number of queued requests of a tenant.
    pub(crate) fn queued(&self, tenant: &str) -> usize {
        let slot = self.slots.get(tenant);
        slot.map_or(0, |slot| self.share(*slot).queued)
    }

    /// Returns whether the tenant may have one more request in the queue.
    pub(super) fn has_capacity(&self, tenant: &JobTenant<'_>) -> Result<(), QueueLimit> {
        let is_full = |most| self.queued(tenant.name) >= most;
        if tenant.most_queued.is_some_and(is_full) {
            Err(QueueLimit::Tenant)
        } else {
            Ok(())
        }
    }

    /// Returns a tenant's virtual time.
    pub(super) fn virtual_ms(&self, tenant: TenantSlot) -> f64 {
        self.share(tenant).virtual_ms
    }

    /// Counts a request that is about to enter the queue. [`Self::enter`] follows.
    pub(super) fn queue(&mut self, tenant: &JobTenant<'_>, work: RequestWork) -> QueuedShare {
        let slot = self.slot(tenant);
        let work_ms = work.total_ms();
        let share = self.share_mut(slot);
        share.queued += 1;
        QueuedShare {
            tenant: slot,
            work_ms,
            place: share.begin(tenant.program, work_ms),
        }
    }

    /// Records that a request waits for the targets of a queue. `least_ms`: the least virtual time
    /// of a tenant that waits there at the same priority. Returns whether its tenant's virtual time
    /// changed.
    pub(super) fn enter(
        &mut self,
        queued: QueuedShare,
        queue: QueueId,
        least_ms: Option<f64>,
    ) -> bool {
        let others_ms = least_ms.map_or(self.virtual_ms, |least| least.min(self.virtual_ms));
        let share = self.share_mut(queued.tenant);
        let before = share.virtual_ms;
        if share.queues.is_empty() {
            // No credit for idle time. Those that wait here may be behind all others, because the
            // targets that they wait for are slow: then they are the measure.
            let longest = LONGEST_LEAD_MS / share.weight;
            share.virtual_ms = before.clamp(others_ms, others_ms + longest);
        }
        *share.queues.entry(queue).or_default() += 1;
        share.virtual_ms.total_cmp(&before).is_ne()
    }

    /// Records that a request no longer waits in a queue; the reverse of [`Self::enter`].
    pub(super) fn leave(&mut self, queued: QueuedShare, queue: QueueId) {
        let queues = &mut self.share_mut(queued.tenant).queues;
        if let Some(requests) = queues.get_mut(&queue) {
            *requests -= 1;
            if *requests == 0 {
                queues.remove(&queue);
            }
        }
    }

    /// Counts that a request is no longer queued. One that is bound is charged next.
    pub(super) fn unqueue(&mut self, queued: QueuedShare, end: QueueEnd) {
        let share = self.share_mut(queued.tenant);
        share.queued -= 1;
        if end == QueueEnd::GivenUp {
            share.end(queued.place, -queued.work_ms);
            self.forget_if_idle(queued.tenant);
        }
    }

    /// Returns the queues in which a tenant has requests.
    pub(super) fn queues_of(&self, tenant: TenantSlot) -> Vec<QueueId> {
        self.share(tenant).queues.keys().copied().collect()
    }

    /// Returns the virtual time that a queued request adds when it is bound.
    pub(super) fn added_ms(&self, queued: QueuedShare) -> f64 {
        queued.work_ms / self.share(queued.tenant).weight
    }

    /// Charges a tenant with the work of a reservation. `waited`: its share, if it was queued.
    /// Returns the tenant.
    pub(super) fn charge(
        &mut self,
        id: ReservationId,
        (tenant, waited): (&JobTenant<'_>, Option<QueuedShare>),
        work: RequestWork,
    ) -> TenantSlot {
        let slot = self.slot(tenant);
        let global_ms = self.virtual_ms;
        let share = self.share_mut(slot);
        // A tenant that waits stands where it is among the others that wait.
        if waited.is_none() && share.queues.is_empty() {
            share.virtual_ms = share.virtual_ms.max(global_ms);
        }
        let start_ms = share.virtual_ms;
        share.virtual_ms += work.total_ms() / share.weight;
        share.in_flight += 1;
        let place = match waited {
            Some(queued) => {
                share.correct(queued.place, work.total_ms() - queued.work_ms);
                queued.place
            }
            None => share.begin(tenant.program, work.total_ms()),
        };
        share.programs_ms = share.programs_ms.max(place.start_ms);
        self.virtual_ms = global_ms.max(start_ms);
        let charge = Charge {
            tenant: slot,
            work,
            place,
        };
        self.charges.insert(id, charge);
        slot
    }

    /// Returns the work that a reservation is charged with.
    pub(super) fn charged(&self, id: ReservationId) -> Option<RequestWork> {
        self.charges.get(&id).map(|charge| charge.work)
    }

    /// Replaces the work that a reservation is charged with; returns its tenant.
    pub(super) fn replace_charge(
        &mut self,
        id: ReservationId,
        work: RequestWork,
    ) -> Option<TenantSlot> {
        let charge = self.charges.get_mut(&id)?;
        let more_ms = work.total_ms() - charge.work.total_ms();
        charge.work = work;
        let (slot, place) = (charge.tenant, charge.place);
        let share = self.share_mut(slot);
        share.virtual_ms += more_ms / share.weight;
        share.correct(place, more_ms);
        Some(slot)
    }

    /// Ends the charge of a reservation. A request that reached no engine has caused no work. Returns
    /// its tenant if it still has requests.
    pub(super) fn end_charge(&mut self, id: ReservationId, reached: bool) -> Option<TenantSlot> {
        let charge = self.charges.remove(&id)?;
        let unspent_ms = if reached { 0.0 } else { charge.work.total_ms() };
        let share = self.share_mut(charge.tenant);
        share.virtual_ms -= unspent_ms / share.weight;
        share.in_flight -= 1;
        share.end(charge.place, -unspent_ms);
        self.forget_if_idle(charge.tenant);
        Some(charge.tenant)
    }

    fn share(&self, slot: TenantSlot) -> &TenantShare {
        &self.shares[slot.0 as usize]
    }

    fn share_mut(&mut self, slot: TenantSlot) -> &mut TenantShare {
        &mut self.shares[slot.0 as usize]
    }

    /// Returns the slot of a tenant, and records its weight.
    fn slot(&mut self, tenant: &JobTenant<'_>) -> TenantSlot {
        let weight = tenant.sane_weight();
        if let Some(slot) = self.slots.get(&**tenant.name) {
            let slot = *slot;
            self.share_mut(slot).weight = weight;
            return slot;
        }
        let share = TenantShare {
            name: Arc::clone(tenant.name),
            weight,
            virtual_ms: 0.0,
            queued: 0,
            queues: BTreeMap::new(),
            in_flight: 0,
            programs: HashMap::default(),
            programs_ms: 0.0,
            is_listed_ahead: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.shares[slot.0 as usize] = share;
                slot
            }
            None => {
                self.shares.push(share);
                // There are fewer tenants than bytes in memory.
                TenantSlot(u32::try_from(self.shares.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.slots.insert(Arc::clone(tenant.name), slot);
        slot
    }

    /// Drops a tenant without requests that would start where the others are, and one of those that
    /// no longer are ahead.
    fn forget_if_idle(&mut self, slot: TenantSlot) {
        let global_ms = self.virtual_ms;
        let share = self.share_mut(slot);
        if !share.is_idle() {
            return;
        }
        if !share.is_listed_ahead {
            if share.virtual_ms <= global_ms {
                self.forget(slot);
            } else {
                share.is_listed_ahead = true;
                self.ahead.push_back(slot);
            }
        }
        // Two for each one that is added: the list shrinks to those that are ahead.
        for _ in 0..2 {
            let Some(oldest) = self.ahead.pop_front() else {
                return;
            };
            let is_full = self.ahead.len() >= MOST_AHEAD;
            let share = self.share_mut(oldest);
            if !share.is_idle() {
                share.is_listed_ahead = false;
            } else if is_full || share.virtual_ms <= global_ms {
                self.forget(oldest);
            } else {
                self.ahead.push_back(oldest);
            }
        }
    }

    fn forget(&mut self, slot: TenantSlot) {
        let name = Arc::clone(&self.share(slot).name);
        if self.slots.remove(&*name).is_some() {
            self.free.push(slot);
        }
    }
}

/// How a request leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    Bound,
    GivenUp,
}

impl TenantShare {
    fn is_idle(&self) -> bool {
        self.queued == 0 && self.in_flight == 0
    }

    /// Begins one more request of a program.
    fn begin(&mut self, program: Option<u64>, work_ms: f64) -> ProgramPlace {
        let mut start_ms = self.programs_ms;
        if let Some(program) = program {
            let work = self.programs.entry(program).or_default();
            start_ms = start_ms.max(work.finish_ms);
            work.finish_ms = start_ms + work_ms;
            work.requests += 1;
        }
        ProgramPlace { program, start_ms }
    }

    /// Records that a request of a program takes more or less than estimated.
    fn correct(&mut self, place: ProgramPlace, more_ms: f64) {
        if let Some(work) = place.program.and_then(|id| self.programs.get_mut(&id)) {
            work.finish_ms += more_ms;
        }
    }

    /// Ends a request of a program, which took more or less than estimated.
    fn end(&mut self, place: ProgramPlace, more_ms: f64) {
        self.correct(place, more_ms);
        let Some(program) = place.program else { return };
        if let Some(work) = self.programs.get_mut(&program) {
            work.requests -= 1;
            if work.requests == 0 {
                self.programs.remove(&program);
            }
        }
    }
}

impl QueuedShare {
    /// Returns where the request starts in the work of its tenant's programs.
    pub(super) fn program_start_ms(&self) -> f64 {
        self.place.start_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: RequestWork = RequestWork {
        prefill_ms: 90.0,
        decode_ms: 10.0,
    };

    fn tenant(name: &Arc<str>) -> JobTenant<'_> {
        JobTenant {
            name,
            weight: 1.0,
            program: Some(7),
            most_queued: None,
        }
    }

    fn names(count: usize) -> Vec<Arc<str>> {
        (0..count).map(|number| number.to_string().into()).collect()
    }

    fn virtual_ms(shares: &TenantShares, name: &str) -> f64 {
        shares.virtual_ms(shares.slots[name])
    }

    #[test]
    fn state_is_kept_only_for_tenants_with_requests_and_for_some_that_are_ahead() {
        let mut shares = TenantShares::default();
        for (number, name) in names(3 * MOST_AHEAD).iter().enumerate() {
            let id = ReservationId(number as u64);
            shares.charge(id, (&tenant(name), None), WORK);
            shares.end_charge(id, true);
        }
        // Each starts where the others are, and so is ahead when it ends.
        assert_eq!((shares.slots.len(), shares.charges.len()), (MOST_AHEAD, 0));
        assert!(shares.shares.len() <= MOST_AHEAD + 1);
        // Tenants that go on leave those behind that do not.
        let busy: Arc<str> = "busy".into();
        for number in 0..2 * MOST_AHEAD as u64 {
            shares.charge(ReservationId(number), (&tenant(&busy), None), WORK);
            shares.end_charge(ReservationId(number), true);
        }
        assert_eq!(shares.slots.len(), 1);
        assert!(shares.share(shares.slots["busy"]).programs.is_empty());
    }

    #[test]
    fn a_request_counts_once_however_often_it_is_settled_and_not_at_all_if_no_engine_got_it() {
        let (mut shares, name) = (TenantShares::default(), Arc::from("a"));
        let (id, other) = (ReservationId(1), ReservationId(2));
        // The other one keeps the tenant.
        shares.charge(other, (&tenant(&name), None), WORK);
        shares.charge(id, (&tenant(&name), None), WORK);
        assert_eq!(virtual_ms(&shares, "a"), 200.0);
        let measured = RequestWork {
            decode_ms: 60.0,
            ..WORK
        };
        for _ in 0..2 {
            shares.replace_charge(id, measured);
            assert_eq!(virtual_ms(&shares, "a"), 250.0);
        }
        for _ in 0..2 {
            shares.end_charge(id, true);
            assert_eq!(virtual_ms(&shares, "a"), 250.0);
        }
        assert_eq!(shares.replace_charge(id, WORK), None, "it has ended");
        shares.charge(id, (&tenant(&name), None), WORK);
        for _ in 0..2 {
            shares.end_charge(id, false);
            assert_eq!(virtual_ms(&shares, "a"), 250.0);
        }
    }

    #[test]
    fn a_tenant_that_comes_back_is_neither_ahead_nor_far_behind() {
        let (mut shares, names) = (TenantShares::default(), names(2));
        let huge = RequestWork {
            prefill_ms: 1e7,
            decode_ms: 0.0,
        };
        shares.charge(ReservationId(1), (&tenant(&names[0]), None), huge);
        shares.virtual_ms = 700.0;
        let queue = QueueId(1);
        for (name, least_ms, expected) in [
            // Those that wait are behind the rest, or not.
            (&names[1], 500.0, 500.0),
            (&names[0], 900.0, 700.0 + LONGEST_LEAD_MS),
        ] {
            let share = shares.queue(&tenant(name), WORK);
            assert!(shares.enter(share, queue, Some(least_ms)));
            assert_eq!(virtual_ms(&shares, name), expected);
            // Its other requests change nothing.
            let share = shares.queue(&tenant(name), WORK);
            assert!(!shares.enter(share, queue, Some(1e9)));
        }
    }

    #[test]
    fn works_without_a_usable_number_count_as_the_least() {
        let work = |prefill_ms| RequestWork {
            prefill_ms,
            decode_ms: 0.0,
        };
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert_eq!(work(bad).total_ms(), 1.0);
        }
        assert!(work(1e300).total_ms() < 1e8);
    }
}
