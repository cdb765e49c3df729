//! The order of the requests in one queue: tenants by what they have received, and the requests of
//! each by length.
//!
//! The term of the tenant changes with each of its requests that is bound. The requests of a tenant
//! are therefore a group with one rank, so that the change moves the group and not its requests.
//! A pass tries the requests in this order, each once.
//!
//! A release tries the first requests of some ten tenants, and the pass mostly begins anew with the
//! next event. A group is therefore taken out of the order only when the pass continues behind it:
//! until then it stands at its rank, with nothing left to try. No call visits it in between, so
//! which requests are returned, and in which order, is the same as if it were taken out at once.
//!
//! **Invariants**: between passes every group is ranked. A group that is not ranked has nothing left
//! to try.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap},
    ops::Bound,
};

use foldhash::fast::FixedState;

use super::{
    order::{Milliseconds, RequestRank},
    shares::TenantSlot,
};
use crate::Ticket;

/// A tenant's requests of one priority.
pub(super) type GroupId = (TenantSlot, Reverse<i32>);
/// The rank of a group.
type GroupRank = (Reverse<i32>, Milliseconds, TenantSlot);
/// The rank of a request in its group: those that cannot meet their targets any more are last.
type Position = (bool, Milliseconds, Ticket);

/// The requests of a queue in their order, and how far the pass has come.
#[derive(Debug, Default)]
pub(super) struct TenantOrder {
    groups: HashMap<GroupId, Group, FixedState>,
    /// All groups but those behind which the pass has continued.
    ranked: BTreeSet<GroupRank>,
    /// The groups of which the pass has tried requests.
    tried: Vec<GroupId>,
    /// The groups with nothing left to try that are still ranked, and some that got requests since.
    finished: Vec<GroupId>,
    /// Number of groups with nothing left to try.
    exhausted: usize,
    requests: usize,
}

#[derive(Debug)]
struct Group {
    tenant_virtual: Milliseconds,
    /// With the virtual milliseconds that each adds to its tenant's when it is bound.
    requests: BTreeMap<Position, f64>,
    next: Next,
    /// Whether its rank is in the order.
    is_ranked: bool,
}

/// The request of a group with which the pass continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The pass has tried none.
    First,
    /// The first at this position or behind it.
    From(Position),
    /// The pass has tried all.
    None,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct TenantPosition {
    pub(super) tenant: TenantSlot,
    pub(super) rank: RequestRank,
    pub(super) ticket: Ticket,
}

impl TenantPosition {
    fn group(&self) -> GroupId {
        (self.tenant, self.rank.band)
    }

    fn in_group(&self) -> Position {
        (self.rank.is_late, self.rank.length, self.ticket)
    }
}

impl Group {
    fn rank(&self, (tenant, band): GroupId) -> GroupRank {
        (band, self.tenant_virtual, tenant)
    }

    /// Returns the requests that the pass has not tried, in order.
    fn untried(&self) -> impl Iterator<Item = (&Position, &f64)> {
        let from = match self.next {
            Next::First => Some(Bound::Unbounded),
            Next::From(position) => Some(Bound::Included(position)),
            Next::None => None,
        };
        let all = from.map(|from| self.requests.range((from, Bound::Unbounded)));
        all.into_iter().flatten()
    }
}

impl TenantOrder {
    pub(super) fn len(&self) -> usize {
        self.requests
    }

    /// Adds a request that adds `virtual_ms` to its tenant's virtual time when it is bound. One that
    /// stands before the next of its group is tried next.
    pub(super) fn insert(&mut self, at: TenantPosition, tenant_virtual_ms: f64, virtual_ms: f64) {
        let (id, position) = (at.group(), at.in_group());
        let group = self.groups.entry(id).or_insert_with(|| Group {
            tenant_virtual: Milliseconds(tenant_virtual_ms),
            requests: BTreeMap::new(),
            next: Next::First,
            is_ranked: false,
        });
        self.requests += usize::from(group.requests.insert(position, virtual_ms).is_none());
        self.exhausted -= usize::from(group.next == Next::None);
        group.next = match group.next {
            Next::From(next) if next < position => Next::From(next),
            Next::First => Next::First,
            Next::From(_) | Next::None => Next::From(position),
        };
        if !group.is_ranked {
            group.is_ranked = true;
            self.ranked.insert(group.rank(id));
        }
    }

    pub(super) fn remove(&mut self, at: TenantPosition) {
        let id = at.group();
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        self.requests -= usize::from(group.requests.remove(&at.in_group()).is_some());
        if group.requests.is_empty() {
            self.exhausted -= usize::from(group.next == Next::None);
            if group.is_ranked {
                self.ranked.remove(&group.rank(id));
            }
            self.groups.remove(&id);
        }
    }

    /// Records the virtual time of a tenant at this priority.
    pub(super) fn set_tenant_virtual(&mut self, id: GroupId, virtual_ms: f64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        // The end of a request that was charged with what it took moves nothing.
        if group.tenant_virtual == Milliseconds(virtual_ms) {
            return;
        }
        let before = group.rank(id);
        group.tenant_virtual = Milliseconds(virtual_ms);
        if group.is_ranked {
            self.ranked.remove(&before);
            self.ranked.insert(group.rank(id));
        }
    }

    /// Returns the least virtual time of a tenant with requests of this priority.
    pub(super) fn least_virtual_ms(&self, band: Reverse<i32>) -> Option<f64> {
        let from = (band, Milliseconds(f64::NEG_INFINITY), TenantSlot::FIRST);
        let ranked = self.ranked.range(from..).next();
        let ranked = ranked.filter(|(other, ..)| *other == band);
        // The others are among the tried ones; mostly there are none.
        let has_others = self.ranked.len() < self.groups.len();
        let tried = self.tried.iter().filter(|_| has_others);
        let tried = tried.filter(|(_, other)| *other == band);
        let tried = tried.filter_map(|id| self.groups.get(id));
        let all = ranked.map(|(_, least, _)| *least);
        all.into_iter()
            .chain(tried.map(|group| group.tenant_virtual))
            .min()
            .map(|least| least.0)
    }

    /// Returns the requests of a tenant that are before a new one with this rank, in order.
    pub(super) fn before(
        &self,
        tenant: TenantSlot,
        rank: RequestRank,
    ) -> impl Iterator<Item = Ticket> + '_ {
        let end = (rank.is_late, rank.length, Ticket(u64::MAX));
        let group = self.groups.get(&(tenant, rank.band)).into_iter();
        group
            .flat_map(move |group| group.requests.range(..end))
            .map(|(position, _)| position.2)
    }

    /// Returns the tenant of all requests with their priority; `None`: they are of several.
    pub(super) fn only_group(&self) -> Option<GroupId> {
        let mut ids = self.groups.keys().copied();
        ids.next().filter(|_| self.groups.len() == 1)
    }

    /// Lets the next pass try all requests.
    pub(super) fn restart(&mut self) {
        for id in self.tried.drain(..) {
            if let Some(group) = self.groups.get_mut(&id) {
                group.next = Next::First;
                if !group.is_ranked {
                    group.is_ranked = true;
                    self.ranked.insert(group.rank(id));
                }
            }
        }
        self.finished.clear();
        self.exhausted = 0;
    }

    /// Returns whether the pass has tried every request.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted == self.groups.len()
    }

    /// Returns the next requests of the pass, at most `most`, in the order that they would have if
    /// each were bound.
    pub(super) fn take_next(&mut self, most: usize) -> Vec<Ticket> {
        self.unrank_finished();
        let mut taken = Vec::with_capacity(most.min(self.requests));
        let mut ranked = self.ranked.iter().copied().peekable();
        // Groups of which some are taken, by the rank that they would then have.
        let mut begun: BinaryHeap<Reverse<GroupRank>> = BinaryHeap::new();
        while taken.len() < most {
            let is_begun_next = match (begun.peek(), ranked.peek()) {
                (Some(Reverse(begun)), Some(ranked)) => begun < ranked,
                (begun, _) => begun.is_some(),
            };
            let picked = if is_begun_next {
                begun.pop().map(|Reverse(rank)| rank)
            } else {
                ranked.next()
            };
            let Some((band, mut reached, tenant)) = picked else {
                break;
            };
            let second = [
                begun.peek().map(|Reverse(rank)| *rank),
                ranked.peek().copied(),
            ];
            let second = second.into_iter().flatten().min();
            let id = (tenant, band);
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            let mut next = Next::None;
            for (position, virtual_ms) in group.untried() {
                let is_behind = second.is_some_and(|second| (band, reached, tenant) > second);
                if taken.len() >= most || is_behind {
                    next = Next::From(*position);
                    break;
                }
                taken.push(position.2);
                reached = Milliseconds(reached.0 + virtual_ms);
            }
            if group.next == Next::First {
                self.tried.push(id);
            }
            group.next = next;
            if next == Next::None {
                self.exhausted += 1;
                self.finished.push(id);
            } else {
                begun.push(Reverse((band, reached, tenant)));
            }
        }
        taken
    }

    /// Takes the groups with nothing left to try out of the order, because the pass continues.
    fn unrank_finished(&mut self) {
        for id in self.finished.drain(..) {
            let group = self.groups.get_mut(&id);
            if let Some(group) = group.filter(|group| group.next == Next::None && group.is_ranked) {
                group.is_ranked = false;
                self.ranked.remove(&group.rank(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A request: tenant, band, length, and what it adds to its tenant's virtual time.
    type Request = (u32, i32, u32, u32);

    /// One in five is too late for its target.
    fn is_late(length: u32) -> bool {
        length.is_multiple_of(5)
    }

    fn position(number: usize, (tenant, band, length, _): Request) -> TenantPosition {
        TenantPosition {
            tenant: TenantSlot::numbered(tenant),
            rank: RequestRank {
                band: Reverse(band),
                is_late: is_late(length),
                length: Milliseconds(f64::from(length)),
            },
            ticket: Ticket(number as u64),
        }
    }

    fn order(requests: &[Request], virtual_ms: &[f64]) -> TenantOrder {
        let mut order = TenantOrder::default();
        for (number, request) in requests.iter().enumerate() {
            let tenant = virtual_ms[request.0 as usize];
            order.insert(position(number, *request), tenant, f64::from(request.3));
        }
        order
    }

    /// Each time the first by band, virtual time, tenant, lateness and length, which then adds to its tenant's
    /// time in its band.
    fn naive(requests: &[Request], virtual_ms: &[f64], most: usize) -> Vec<Ticket> {
        let all = requests.iter().copied().enumerate().collect();
        naive_of(all, virtual_ms, most)
    }

    /// The same of requests with these numbers.
    fn naive_of(mut left: Vec<(usize, Request)>, virtual_ms: &[f64], most: usize) -> Vec<Ticket> {
        let mut reached: BTreeMap<(i32, u32), f64> = BTreeMap::new();
        let mut taken = Vec::new();
        while taken.len() < most && !left.is_empty() {
            let key = |&(number, (tenant, band, length, _)): &(usize, Request)| {
                let added = reached.get(&(band, tenant)).copied().unwrap_or_default();
                let virtual_ms = Milliseconds(virtual_ms[tenant as usize] + added);
                let place = (is_late(length), length, number);
                (Reverse(band), virtual_ms, tenant, place)
            };
            let first = (0..left.len())
                .min_by_key(|at| key(&left[*at]))
                .expect("some are left");
            let (number, request) = left.remove(first);
            *reached.entry((request.1, request.0)).or_default() += f64::from(request.3);
            taken.push(Ticket(number as u64));
        }
        taken
    }

    fn requests() -> impl Strategy<Value = Vec<Request>> {
        prop::collection::vec((0u32..4, 0i32..2, 0u32..50, 1u32..30), 0..40)
    }

    proptest! {
        #[test]
        fn the_next_ones_are_those_of_a_walk_that_counts_each_as_bound(
            requests in requests(),
            virtual_ms in prop::collection::vec((0u32..60).prop_map(f64::from), 4),
            most in 1usize..20,
        ) {
            let mut order = order(&requests, &virtual_ms);
            prop_assert_eq!(order.len(), requests.len());
            prop_assert_eq!(order.take_next(most), naive(&requests, &virtual_ms, most));
            order.restart();
            prop_assert_eq!(order.take_next(most), naive(&requests, &virtual_ms, most), "it starts over");
        }

        #[test]
        fn a_pass_tries_each_request_once_also_while_tenants_move_and_others_leave(
            requests in requests(),
            moves in prop::collection::vec((0u32..4, 0u32..100, 0usize..40), 40),
            most in 1usize..6,
        ) {
            let mut order = order(&requests, &[0.0; 4]);
            let mut left: BTreeSet<Ticket> = (0..requests.len() as u64).map(Ticket).collect();
            for (tenant, virtual_ms, leaves) in moves {
                for ticket in order.take_next(most) {
                    prop_assert!(left.remove(&ticket), "{ticket:?} is tried again");
                }
                for band in (0..2).map(Reverse) {
                    let group = (TenantSlot::numbered(tenant), band);
                    order.set_tenant_virtual(group, f64::from(virtual_ms));
                }
                if let Some(request) = requests.get(leaves) {
                    order.remove(position(leaves, *request));
                    left.remove(&Ticket(leaves as u64));
                }
            }
            prop_assert!(left.is_empty() && order.take_next(1).is_empty(), "{left:?}");
            prop_assert!(order.is_exhausted());
        }

        #[test]
        fn requests_that_come_and_go_within_passes_change_neither_what_is_tried_nor_the_next_order(
            requests in requests(),
            changes in prop::collection::vec((0u32..4, 0u32..100, 0usize..40, 0usize..6, 0u32..8), 0..80),
            most in 1usize..20,
        ) {
            let (mut order, mut virtual_ms) = (TenantOrder::default(), [0.0; 4]);
            let mut waiting: BTreeMap<Ticket, (usize, Request)> = BTreeMap::new();
            let mut untried: BTreeSet<Ticket> = BTreeSet::new();
            for (tenant, moved_ms, number, taken, restarts) in changes {
                virtual_ms[tenant as usize] = f64::from(moved_ms);
                for band in (0..2).map(Reverse) {
                    let group = (TenantSlot::numbered(tenant), band);
                    order.set_tenant_virtual(group, f64::from(moved_ms));
                }
                if let Some(request) = requests.get(number).copied() {
                    let (at, ticket) = (position(number, request), Ticket(number as u64));
                    if waiting.remove(&ticket).is_some() {
                        order.remove(at);
                        untried.remove(&ticket);
                    } else {
                        order.insert(at, virtual_ms[request.0 as usize], f64::from(request.3));
                        waiting.insert(ticket, (number, request));
                        untried.insert(ticket);
                    }
                }
                if restarts == 0 {
                    order.restart();
                    untried = waiting.keys().copied().collect();
                }
                for ticket in order.take_next(taken) {
                    prop_assert!(waiting.contains_key(&ticket), "{ticket:?} is gone");
                    untried.remove(&ticket);
                }
                for band in 0..2 {
                    let of_band = waiting.values().filter(|(_, request)| request.1 == band);
                    let own_ms = of_band.map(|(_, request)| Milliseconds(virtual_ms[request.0 as usize]));
                    let least = own_ms.min().map(|least| least.0);
                    prop_assert_eq!(order.least_virtual_ms(Reverse(band)), least);
                }
            }
            // A cursor that goes back tries some again, and each call goes forward.
            for _ in 0..=waiting.len() {
                for ticket in order.take_next(most) {
                    untried.remove(&ticket);
                }
            }
            prop_assert!(untried.is_empty() && order.take_next(1).is_empty(), "{untried:?}");
            prop_assert!(order.is_exhausted());
            order.restart();
            prop_assert_eq!(order.is_exhausted(), waiting.is_empty());
            let left = waiting.values().copied().collect();
            prop_assert_eq!(order.take_next(most), naive_of(left, &virtual_ms, most));
        }

        #[test]
        fn the_requests_before_a_new_one_are_those_of_its_tenant_and_band_that_go_first(
            requests in requests(),
            new in (0u32..4, 0i32..2, 0u32..50, 1u32..30),
        ) {
            let order = order(&requests, &[0.0; 4]);
            let TenantPosition { tenant, rank, .. } = position(requests.len(), new);
            let before: Vec<Ticket> = order.before(tenant, rank).collect();
            let own = requests.iter().copied().enumerate();
            let own = own.filter(|(_, request)| (request.0, request.1) == (new.0, new.1));
            let place = |length: u32| (is_late(length), length);
            let own = own.filter(|(_, request)| place(request.2) <= place(new.2));
            prop_assert_eq!(before, naive_of(own.collect(), &[0.0; 4], requests.len()));
        }

        #[test]
        fn the_least_of_a_band_is_known_at_any_point_of_a_pass(
            requests in requests(),
            virtual_ms in prop::collection::vec((0u32..60).prop_map(f64::from), 4),
            tried in 0usize..40,
        ) {
            let mut order = order(&requests, &virtual_ms);
            order.take_next(tried);
            for band in 0..2 {
                let of_band = requests.iter().filter(|request| request.1 == band);
                let least = of_band.map(|request| Milliseconds(virtual_ms[request.0 as usize])).min();
                prop_assert_eq!(order.least_virtual_ms(Reverse(band)), least.map(|least| least.0));
            }
        }
    }
}
