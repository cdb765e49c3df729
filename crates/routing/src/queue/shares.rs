//! What each tenant has received of the fleet, over its weight: its virtual time.
//!
//! Start-time fair queueing: of the tenants that wait, the one with the least virtual time is next.
//! A request adds the work that it causes, over the tenant's weight, when it is bound, whether it
//! waited or not; at its end the estimate is replaced by the work that the engine reported. Weights
//! change no more than the order, so no target is idle while a request waits that it could begin.
//!
//! Queues whose targets differ in speed and number advance at different rates, so virtual times of
//! different queues, or priorities, cannot be compared. A tenant's is therefore relative to the queue
//! and priority in which it waits: an offset is set when its first request enters. It then starts where
//! the others of that queue are, or if there are none, those of the queues that share a target with it,
//! so that time without requests is no credit, plus its lead: how far it is ahead of those that wait
//! where it waited last, or of all if it has only sent requests that did not wait, but not more than
//! [`LONGEST_LEAD_MS`].
//!
//! Inside a tenant the same holds for its programs, as long as they have requests: a request starts
//! where the earlier ones of its program finish, and this adds to its length. A request without a
//! program, or one whose program has no other request, starts where the tenant's programs are.
//!
//! All of this is of one router: the load of other replicas is in the ledger, and adds to no tenant.
//!
//! **Invariant**: a bound request adds its work once, and its end replaces or keeps it once. State is
//! kept for tenants with requests, and for at most [`MOST_AHEAD`] idle ones that have a lead; any other
//! idle tenant starts where the others are, as one without state does.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::{
    QueueId, QueueLimit, QueueSettings, RequestWork,
    capacity::{CountedRequests, QueuedAmount},
};
use crate::{JobTenant, ReservationId};

/// Most work, in milliseconds at weight 1, by which a tenant that comes back is behind the others for
/// what it received before. Well below the usual `queue.wait`: a longer lead would have no effect
/// but that its requests are bound when their wait ends.
const LONGEST_LEAD_MS: f64 = 5_000.0;

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

/// The requests that contend: of one queue and priority.
pub(super) type QueueBand = (QueueId, Reverse<i32>);

/// Returns the least virtual time of a tenant that waits in a queue with a priority; `None`: none does.
pub(super) type LeastVirtual<'a> = &'a dyn Fn(QueueBand) -> Option<f64>;

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
    /// The work received, over the weight. With an offset it is a virtual time.
    received_ms: f64,
    /// Where it waited last; `None`: nowhere, or it had requests since that did not wait.
    waited_in: Option<QueueBand>,
    /// Its offset there, or to the virtual time of all.
    offset_ms: f64,
    queued: QueuedAmount,
    /// Those of the queued requests that wait for room.
    queued_for_room: QueuedAmount,
    /// Where it has requests that wait for targets.
    queues: BTreeMap<QueueBand, WaitingRequests>,
    in_flight: usize,
    /// Programs with requests; at most as many as those.
    programs: HashMap<u64, ProgramWork, FixedState>,
    /// The greatest start of a request that was bound, in its program's work.
    programs_ms: f64,
    is_listed_ahead: bool,
}

/// A tenant's requests in one queue and priority.
#[derive(Clone, Copy, Debug)]
struct WaitingRequests {
    number: usize,
    offset_ms: f64,
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
    /// The offset of its tenant where it waits.
    offset_ms: f64,
}

/// The work that a request in flight is charged with.
#[derive(Debug)]
struct Charge {
    tenant: TenantSlot,
    work: RequestWork,
    /// The tenant's weight at that time, so that a correction is of the same measure.
    weight: f64,
    place: ProgramPlace,
}

impl TenantShares {
    /// Returns the number of queued requests of a tenant.
    pub(crate) fn queued(&self, tenant: &str) -> usize {
        let slot = self.slots.get(tenant);
        slot.map_or(0, |slot| self.share(*slot).queued.requests)
    }

    /// Returns the slot of a tenant, if it has one.
    pub(super) fn slot_of(&self, tenant: &JobTenant<'_>) -> Option<TenantSlot> {
        self.slots.get(&**tenant.name).copied()
    }

    /// Returns whether the tenant may have one more such request in the queue that retains this many
    /// bytes. The first one may have any size: one larger than the tenant's part would never get in.
    pub(super) fn has_capacity(
        &self,
        settings: &QueueSettings,
        tenant: &JobTenant<'_>,
        bytes: u64,
        counted: CountedRequests,
    ) -> Result<(), QueueLimit> {
        let slot = self.slots.get(&**tenant.name);
        let queued = slot.map_or_else(QueuedAmount::default, |slot| {
            self.share(*slot).amount(counted)
        });
        let sum = queued.bytes.saturating_add(bytes);
        let lacks_entry = |most: usize| queued.requests as u64 >= counted.part_of(most as u64);
        let lacks_bytes = |most: u64| queued.requests > 0 && sum > counted.part_of(most);
        let most_bytes = tenant.most_bytes(settings.max_bytes);
        if tenant.most_queued.is_some_and(lacks_entry) {
            Err(QueueLimit::Tenant)
        } else if most_bytes.is_some_and(lacks_bytes) {
            Err(QueueLimit::TenantBytes)
        } else {
            Ok(())
        }
    }

    /// Counts the bytes of a tenant's request that enters the queue.
    pub(super) fn add_bytes(&mut self, tenant: TenantSlot, bytes: u64) {
        let queued = &mut self.share_mut(tenant).queued;
        queued.bytes = queued.bytes.saturating_add(bytes);
    }

    /// Counts the bytes of a tenant's request that leaves the queue.
    pub(super) fn subtract_bytes(&mut self, tenant: TenantSlot, bytes: u64) {
        let queued = &mut self.share_mut(tenant).queued;
        queued.bytes = queued.bytes.saturating_sub(bytes);
    }

    /// Counts a queued request of a tenant that begins to wait for room, or no longer does.
    pub(super) fn count_room(&mut self, (tenant, bytes): (TenantSlot, u64), waits: bool) {
        let amount = &mut self.share_mut(tenant).queued_for_room;
        *amount = if waits {
            QueuedAmount {
                requests: amount.requests + 1,
                bytes: amount.bytes.saturating_add(bytes),
            }
        } else {
            QueuedAmount {
                requests: amount.requests.saturating_sub(1),
                bytes: amount.bytes.saturating_sub(bytes),
            }
        };
    }

    /// Returns whether a tenant that has no queued request has received no more than those that wait,
    /// and has fewer than half as many requests in flight as another one, over their weights.
    pub(super) fn is_far_below(
        &self,
        tenant: &JobTenant<'_>,
        other: TenantSlot,
        least: LeastVirtual<'_>,
    ) -> bool {
        let running = |share: &TenantShare, weight: f64| share.in_flight as f64 / weight;
        let other = self.share(other);
        let others_running = running(other, other.weight);
        let Some(slot) = self.slots.get(&**tenant.name) else {
            return others_running > 0.0;
        };
        let own = self.share(*slot);
        own.queued.requests == 0
            && 2.0 * running(own, tenant.sane_weight()) < others_running
            && self.lead_ms(*slot, least) <= 0.0
    }

    /// Returns the virtual time of a request's tenant where the request waits.
    pub(super) fn virtual_ms(&self, queued: QueuedShare) -> f64 {
        self.share(queued.tenant).received_ms + queued.offset_ms
    }

    /// Returns the slot of a tenant, if it has one, and its virtual time in a queue if one more of its
    /// requests enters it now.
    pub(super) fn start_in(
        &self,
        tenant: &JobTenant<'_>,
        queue: QueueBand,
        least: LeastVirtual<'_>,
    ) -> (Option<TenantSlot>, f64) {
        let others_ms = self.others_ms(Some(queue), least);
        let Some(slot) = self.slot_of(tenant) else {
            return (None, others_ms);
        };
        let share = self.share(slot);
        let start_ms = match share.queues.get(&queue) {
            Some(waiting) => share.received_ms + waiting.offset_ms,
            None => {
                let longest_ms = LONGEST_LEAD_MS / tenant.sane_weight();
                others_ms + self.lead_ms(slot, least).min(longest_ms)
            }
        };
        (Some(slot), start_ms)
    }

    /// Counts a request that is about to enter the queue. [`Self::enter`] follows, and
    /// [`Self::add_bytes`] unless it leaves at once.
    pub(super) fn queue(&mut self, tenant: &JobTenant<'_>, work: RequestWork) -> QueuedShare {
        let slot = self.slot(tenant);
        let work_ms = work.total_ms();
        let share = self.share_mut(slot);
        share.queued.requests += 1;
        QueuedShare {
            tenant: slot,
            work_ms,
            place: share.begin(tenant.program, work_ms),
            offset_ms: share.offset_ms,
        }
    }

    /// Records that a request waits for the targets of a queue. `moved_ms`: the virtual time that its
    /// tenant had in the queue from which the request is moved. Returns the share there.
    pub(super) fn enter(
        &mut self,
        queued: QueuedShare,
        (queue, moved_ms): (QueueBand, Option<f64>),
        least: LeastVirtual<'_>,
    ) -> QueuedShare {
        let lead_ms = self.lead_ms(queued.tenant, least);
        let others_ms = self.others_ms(Some(queue), least);
        let share = self.share_mut(queued.tenant);
        let start_ms = moved_ms.unwrap_or(others_ms + lead_ms.min(LONGEST_LEAD_MS / share.weight));
        let offset_ms = start_ms - share.received_ms;
        let requests = share.queues.entry(queue).or_insert(WaitingRequests {
            number: 0,
            offset_ms,
        });
        requests.number += 1;
        let offset_ms = requests.offset_ms;
        (share.waited_in, share.offset_ms) = (Some(queue), offset_ms);
        QueuedShare {
            offset_ms,
            ..queued
        }
    }

    /// Records that a request no longer waits in a queue; the reverse of [`Self::enter`].
    pub(super) fn leave(&mut self, queued: QueuedShare, queue: QueueBand) {
        let queues = &mut self.share_mut(queued.tenant).queues;
        if let Some(requests) = queues.get_mut(&queue) {
            requests.number -= 1;
            if requests.number == 0 {
                queues.remove(&queue);
            }
        }
    }

    /// Counts that a request is no longer queued. One that is bound is charged next.
    pub(super) fn unqueue(&mut self, queued: QueuedShare, end: QueueEnd, least: LeastVirtual<'_>) {
        let share = self.share_mut(queued.tenant);
        share.queued.requests -= 1;
        if end == QueueEnd::GivenUp {
            share.end(queued.place, -queued.work_ms);
            self.forget_if_idle(queued.tenant, least);
        }
    }

    /// Returns where a tenant has requests, with its virtual time there.
    pub(super) fn queues_of(
        &self,
        tenant: TenantSlot,
    ) -> impl Iterator<Item = (QueueBand, f64)> + '_ {
        let share = self.share(tenant);
        let queues = share.queues.iter();
        queues.map(|(queue, requests)| (*queue, share.received_ms + requests.offset_ms))
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
        least: LeastVirtual<'_>,
    ) -> TenantSlot {
        // A queued request has its tenant's slot, without another lookup of the name.
        let slot = match waited {
            Some(queued) => {
                self.share_mut(queued.tenant).weight = tenant.sane_weight();
                queued.tenant
            }
            None => self.slot(tenant),
        };
        let global_ms = self.virtual_ms;
        let share = self.share_mut(slot);
        // As long as others wait where it waited last, it stands where it is among them.
        let stands = !share.queues.is_empty() || share.waited_in.and_then(least).is_some();
        let start_ms = match waited {
            Some(queued) => share.received_ms + queued.offset_ms,
            None if stands => global_ms,
            None => {
                let start_ms = global_ms.max(share.received_ms + share.offset_ms);
                (share.waited_in, share.offset_ms) = (None, start_ms - share.received_ms);
                start_ms
            }
        };
        let weight = share.weight;
        share.received_ms += work.total_ms() / weight;
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
            weight,
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
        let (slot, place, weight) = (charge.tenant, charge.place, charge.weight);
        let share = self.share_mut(slot);
        share.received_ms += more_ms / weight;
        share.correct(place, more_ms);
        Some(slot)
    }

    /// Ends the charge of a reservation. A request that reached no engine has caused no work. Returns
    /// its tenant if it still has requests.
    pub(super) fn end_charge(
        &mut self,
        id: ReservationId,
        reached: bool,
        least: LeastVirtual<'_>,
    ) -> Option<TenantSlot> {
        let charge = self.charges.remove(&id)?;
        let unspent_ms = if reached { 0.0 } else { charge.work.total_ms() };
        let share = self.share_mut(charge.tenant);
        share.received_ms -= unspent_ms / charge.weight;
        share.in_flight -= 1;
        share.end(charge.place, -unspent_ms);
        self.forget_if_idle(charge.tenant, least);
        Some(charge.tenant)
    }

    /// Returns the virtual time of the others that wait in a queue or contend with it, or of all if
    /// none does. Those that wait there may be behind all others, because the targets that they wait
    /// for are slow.
    fn others_ms(&self, queue: Option<QueueBand>, least: LeastVirtual<'_>) -> f64 {
        let least_ms = queue.and_then(least);
        least_ms.map_or(self.virtual_ms, |least| least.min(self.virtual_ms))
    }

    /// Returns how far a tenant is ahead of those that wait where it waited last.
    fn lead_ms(&self, tenant: TenantSlot, least: LeastVirtual<'_>) -> f64 {
        let share = self.share(tenant);
        let own_ms = share.received_ms + share.offset_ms;
        (own_ms - self.others_ms(share.waited_in, least)).max(0.0)
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
            received_ms: 0.0,
            waited_in: None,
            offset_ms: 0.0,
            queued: QueuedAmount::default(),
            queued_for_room: QueuedAmount::default(),
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
    fn forget_if_idle(&mut self, slot: TenantSlot, least: LeastVirtual<'_>) {
        if !self.share(slot).is_idle() {
            return;
        }
        if !self.share(slot).is_listed_ahead {
            if self.lead_ms(slot, least) > 0.0 {
                self.share_mut(slot).is_listed_ahead = true;
                self.ahead.push_back(slot);
            } else {
                self.forget(slot);
            }
        }
        // Two for each one that is added: the list shrinks to those that are ahead.
        for _ in 0..2 {
            let Some(oldest) = self.ahead.pop_front() else {
                return;
            };
            let is_full = self.ahead.len() >= MOST_AHEAD;
            if !self.share(oldest).is_idle() {
                self.share_mut(oldest).is_listed_ahead = false;
            } else if is_full || self.lead_ms(oldest, least) <= 0.0 {
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
    fn amount(&self, counted: CountedRequests) -> QueuedAmount {
        match counted {
            CountedRequests::All => self.queued,
            CountedRequests::ForRoom => self.queued_for_room,
        }
    }

    fn is_idle(&self) -> bool {
        self.queued.requests == 0 && self.in_flight == 0
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
            is_alone: true,
        }
    }

    /// No tenant waits.
    fn nobody(_: QueueBand) -> Option<f64> {
        None
    }

    fn band(queue: u64, band: i32) -> QueueBand {
        (QueueId(queue), Reverse(band))
    }

    fn enter(
        shares: &mut TenantShares,
        name: &Arc<str>,
        queue: QueueBand,
        least: LeastVirtual<'_>,
    ) -> QueuedShare {
        let queued = shares.queue(&tenant(name), WORK);
        shares.enter(queued, (queue, None), least)
    }

    fn names(count: usize) -> Vec<Arc<str>> {
        (0..count).map(|number| number.to_string().into()).collect()
    }

    fn virtual_ms(shares: &TenantShares, name: &str) -> f64 {
        let share = shares.share(shares.slots[name]);
        share.received_ms + share.offset_ms
    }

    #[test]
    fn state_is_kept_only_for_tenants_with_requests_and_for_some_that_are_ahead() {
        let mut shares = TenantShares::default();
        for (number, name) in names(3 * MOST_AHEAD).iter().enumerate() {
            let id = ReservationId(number as u64);
            shares.charge(id, (&tenant(name), None), WORK, &nobody);
            shares.end_charge(id, true, &nobody);
        }
        // Each starts where the others are, and so is ahead when it ends.
        assert_eq!((shares.slots.len(), shares.charges.len()), (MOST_AHEAD, 0));
        assert!(shares.shares.len() <= MOST_AHEAD + 1);
        // Tenants that go on leave those behind that do not.
        let busy: Arc<str> = "busy".into();
        for number in 0..2 * MOST_AHEAD as u64 {
            shares.charge(ReservationId(number), (&tenant(&busy), None), WORK, &nobody);
            shares.end_charge(ReservationId(number), true, &nobody);
        }
        assert_eq!(shares.slots.len(), 1);
        assert!(shares.share(shares.slots["busy"]).programs.is_empty());
    }

    #[test]
    fn a_request_counts_once_however_often_it_is_settled_and_not_at_all_if_no_engine_got_it() {
        let (mut shares, name) = (TenantShares::default(), Arc::from("a"));
        let (id, other) = (ReservationId(1), ReservationId(2));
        // The other one keeps the tenant.
        shares.charge(other, (&tenant(&name), None), WORK, &nobody);
        shares.charge(id, (&tenant(&name), None), WORK, &nobody);
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
            shares.end_charge(id, true, &nobody);
            assert_eq!(virtual_ms(&shares, "a"), 250.0);
        }
        assert_eq!(shares.replace_charge(id, WORK), None, "it has ended");
        shares.charge(id, (&tenant(&name), None), WORK, &nobody);
        for _ in 0..2 {
            shares.end_charge(id, false, &nobody);
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
        let queue = band(1, 0);
        shares.charge(ReservationId(1), (&tenant(&names[0]), None), huge, &nobody);
        shares.virtual_ms = 700.0;
        for (name, least_ms, expected) in [
            // Those that wait are behind the rest, or not.
            (&names[1], 500.0, 500.0),
            (&names[0], 900.0, 700.0 + LONGEST_LEAD_MS),
        ] {
            let first = enter(&mut shares, name, queue, &|_| Some(least_ms));
            assert_eq!(shares.virtual_ms(first), expected);
            // Its other requests change nothing.
            let second = enter(&mut shares, name, queue, &|_| Some(1e9));
            assert_eq!(shares.virtual_ms(second), expected);
        }
    }

    #[test]
    fn a_request_that_did_not_wait_puts_its_tenant_behind_a_slow_queue_by_its_own_work_only() {
        let (mut shares, names) = (TenantShares::default(), names(1));
        let (slow, waits) = (band(1, 0), |_| Some(100.0));
        // Another pool, which is fast, is far ahead.
        shares.virtual_ms = 1e6;
        let from = (&tenant(&names[0]), None);
        shares.charge(ReservationId(1), from, WORK, &waits);
        let queued = enter(&mut shares, &names[0], slow, &waits);
        assert_eq!(shares.virtual_ms(queued), 200.0);
        // The fast pool goes on: what the tenant received there is no lead any more.
        shares.leave(queued, slow);
        shares.unqueue(queued, QueueEnd::GivenUp, &waits);
        shares.end_charge(ReservationId(1), true, &nobody);
        shares.charge(ReservationId(2), from, WORK, &nobody);
        shares.virtual_ms = 2e6;
        let queued = enter(&mut shares, &names[0], slow, &waits);
        assert_eq!(shares.virtual_ms(queued), 100.0);
    }

    #[test]
    fn a_tenant_with_one_request_at_a_time_in_a_slow_queue_keeps_what_it_received() {
        let (mut shares, names) = (TenantShares::default(), names(1));
        let (slow, waits) = (band(1, 0), |queue| (queue == band(1, 0)).then_some(100.0));
        shares.virtual_ms = 1e6;
        for (id, expected) in [(1, 100.0), (2, 200.0), (3, 300.0)] {
            let queued = enter(&mut shares, &names[0], slow, &waits);
            assert_eq!(shares.virtual_ms(queued), expected);
            shares.leave(queued, slow);
            shares.unqueue(queued, QueueEnd::Bound, &waits);
            let id = ReservationId(id);
            shares.charge(id, (&tenant(&names[0]), Some(queued)), WORK, &waits);
            shares.end_charge(id, true, &waits);
        }
        // The others have received as much: the state is dropped.
        let queued = enter(&mut shares, &names[0], slow, &waits);
        shares.leave(queued, slow);
        shares.unqueue(queued, QueueEnd::GivenUp, &|_| Some(400.0));
        assert!(shares.slots.is_empty());
    }

    #[test]
    fn a_moved_request_keeps_the_virtual_time_of_its_tenant() {
        let (mut shares, names) = (TenantShares::default(), names(1));
        let queued = enter(&mut shares, &names[0], band(1, 0), &|_| Some(100.0));
        shares.virtual_ms = 1e6;
        let moved_ms = shares.virtual_ms(queued);
        shares.leave(queued, band(1, 0));
        let queued = shares.enter(queued, (band(2, 0), Some(moved_ms)), &nobody);
        assert_eq!(shares.virtual_ms(queued), moved_ms);
    }

    #[test]
    fn a_tenant_that_waits_elsewhere_has_neither_credit_nor_a_longer_lead() {
        let (mut shares, names) = (TenantShares::default(), names(1));
        shares.virtual_ms = 1e6;
        let least = |queue: QueueBand| match queue {
            (QueueId(1), Reverse(0)) => Some(100.0),
            (QueueId(1), _) => Some(7e5),
            _ => Some(9e5),
        };
        for (queue, expected) in [
            (band(1, 0), 100.0),
            (band(1, 1), 7e5),
            (band(2, 0), 9e5),
            (band(1, 0), 100.0),
        ] {
            let queued = enter(&mut shares, &names[0], queue, &least);
            assert_eq!(shares.virtual_ms(queued), expected);
        }
    }

    #[test]
    fn a_tenant_has_half_of_the_bytes_where_there_are_others_and_all_where_there_are_none() {
        let (mut shares, names) = (TenantShares::default(), names(2));
        let settings = QueueSettings {
            max_bytes: 800,
            ..QueueSettings::default()
        };
        let fits = |shares: &TenantShares, tenant: &JobTenant<'_>, bytes, counted| {
            let capacity = shares.has_capacity(&settings, tenant, bytes, counted);
            capacity.is_ok()
        };
        let [one, other] = [0, 1].map(|number: usize| JobTenant {
            is_alone: false,
            ..tenant(&names[number])
        });
        let alone = tenant(&names[0]);
        let all = CountedRequests::All;
        assert!(fits(&shares, &one, 800, all), "the first one");
        let queued = shares.queue(&one, WORK);
        shares.add_bytes(queued.tenant, 300);
        for (tenant, bytes, expected) in [
            (&one, 100, true),
            (&one, 101, false),
            (&other, 800, true),
            // The limit of the router is not that of the tenant.
            (&alone, 1000, true),
        ] {
            assert_eq!(fits(&shares, tenant, bytes, all), expected);
        }
        // Of these three quarters are for the requests that wait for room.
        let room = CountedRequests::ForRoom;
        assert!(fits(&shares, &one, 400, room), "the first one");
        shares.count_room((queued.tenant, 200), true);
        for (tenant, bytes, expected) in [
            (&one, 100, true),
            (&one, 101, false),
            (&other, 800, true),
            (&alone, 1000, true),
        ] {
            assert_eq!(fits(&shares, tenant, bytes, room), expected);
        }
        assert!(fits(&shares, &one, 100, all), "counted once");
        // It has room, and then leaves.
        shares.count_room((queued.tenant, 200), false);
        assert!(fits(&shares, &one, 400, room));
        assert!(!fits(&shares, &one, 101, all));
        let second = shares.queue(&one, WORK);
        shares.add_bytes(second.tenant, 100);
        shares.subtract_bytes(queued.tenant, 300);
        shares.unqueue(queued, QueueEnd::GivenUp, &nobody);
        assert!(fits(&shares, &one, 300, all));
        assert!(!fits(&shares, &one, 301, all));
    }

    #[test]
    fn a_correction_counts_at_the_weight_of_the_charge() {
        let (mut shares, name) = (TenantShares::default(), Arc::from("a"));
        let weighted = |weight| JobTenant {
            weight,
            ..tenant(&name)
        };
        let (id, other) = (ReservationId(1), ReservationId(2));
        shares.charge(other, (&weighted(10.0), None), WORK, &nobody);
        shares.charge(id, (&weighted(10.0), None), WORK, &nobody);
        assert_eq!(virtual_ms(&shares, "a"), 20.0);
        // A reload lowers the weight.
        let _ = shares.slot(&weighted(0.1));
        shares.end_charge(id, false, &nobody);
        assert_eq!(virtual_ms(&shares, "a"), 10.0);
    }

    #[test]
    fn a_tenant_is_far_below_another_with_less_than_half_of_what_runs_over_the_weights() {
        let (mut shares, names) = (TenantShares::default(), names(2));
        let mut other = TenantSlot::FIRST;
        for id in 0..6 {
            let from = (&tenant(&names[0]), None);
            other = shares.charge(ReservationId(id), from, WORK, &nobody);
        }
        let own = |weight| JobTenant {
            weight,
            ..tenant(&names[1])
        };
        assert!(shares.is_far_below(&own(1.0), other, &nobody), "none");
        for id in 6..9 {
            shares.charge(ReservationId(id), (&own(1.0), None), WORK, &nobody);
        }
        assert!(!shares.is_far_below(&own(2.0), other, &nobody), "ahead");
        shares.virtual_ms = 1e6;
        for (weight, expected) in [(0.5, false), (1.0, false), (1.1, true), (2.0, true)] {
            let found = shares.is_far_below(&own(weight), other, &nobody);
            assert_eq!(found, expected, "{weight}");
        }
        shares.queue(&own(2.0), WORK);
        assert!(!shares.is_far_below(&own(2.0), other, &nobody), "it waits");
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
