//! The order of the requests in one queue: tenants by what they have received, and the requests of
//! each by length.
//!
//! The term of the tenant changes with each of its requests that is bound. The requests of a tenant
//! are therefore a group with one rank, so that the change moves the group and not its requests.
//! A pass tries the requests in this order, each once.
//!
//! **Invariant**: between passes every group is among the untried ones.

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
type GroupId = (TenantSlot, Reverse<i32>);
/// The rank of a group.
type GroupRank = (Reverse<i32>, Milliseconds, TenantSlot);
/// The rank of a request in its group.
type Position = (Milliseconds, Ticket);

/// The requests of a queue in their order, and how far the pass has come.
#[derive(Debug, Default)]
pub(super) struct TenantOrder {
    groups: HashMap<GroupId, Group, FixedState>,
    /// The groups with requests that the pass has not tried.
    untried: BTreeSet<GroupRank>,
    /// The groups of which the pass has tried requests.
    tried: Vec<GroupId>,
    requests: usize,
}

#[derive(Debug)]
struct Group {
    tenant_virtual: Milliseconds,
    /// With the virtual milliseconds that each adds to its tenant's when it is bound.
    requests: BTreeMap<Position, f64>,
    next: Next,
}

/// The request of a group with which the pass continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        (self.rank.length, self.ticket)
    }
}

impl Group {
    fn rank(&self, (tenant, band): GroupId) -> GroupRank {
        (band, self.tenant_virtual, tenant)
    }

    /// Returns the requests from this one on, in order.
    fn from(&self, next: Next) -> impl Iterator<Item = (&Position, &f64)> {
        let from = match next {
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
        });
        self.requests += usize::from(group.requests.insert(position, virtual_ms).is_none());
        group.next = match group.next {
            Next::From(next) if next < position => Next::From(next),
            Next::First => Next::First,
            Next::From(_) | Next::None => Next::From(position),
        };
        self.untried.insert(group.rank(id));
    }

    pub(super) fn remove(&mut self, at: TenantPosition) {
        let id = at.group();
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        self.requests -= usize::from(group.requests.remove(&at.in_group()).is_some());
        if group.requests.is_empty() {
            let rank = group.rank(id);
            self.untried.remove(&rank);
            self.groups.remove(&id);
        }
    }

    /// Records the virtual time of a tenant at this priority.
    pub(super) fn set_tenant_virtual(&mut self, id: GroupId, virtual_ms: f64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let before = group.rank(id);
        group.tenant_virtual = Milliseconds(virtual_ms);
        if self.untried.remove(&before) {
            self.untried.insert(group.rank(id));
        }
    }

    /// Returns the least virtual time of a tenant with requests of this priority.
    pub(super) fn least_virtual_ms(&self, band: Reverse<i32>) -> Option<f64> {
        let from = (band, Milliseconds(f64::NEG_INFINITY), TenantSlot::FIRST);
        let untried = self.untried.range(from..).next();
        let untried = untried.filter(|(other, ..)| *other == band);
        let tried = self.tried.iter().filter(|(_, other)| *other == band);
        let tried = tried.filter_map(|id| self.groups.get(id));
        let all = untried.map(|(_, least, _)| *least);
        all.into_iter()
            .chain(tried.map(|group| group.tenant_virtual))
            .min()
            .map(|least| least.0)
    }

    /// Lets the next pass try all requests.
    pub(super) fn restart(&mut self) {
        for id in self.tried.drain(..) {
            if let Some(group) = self.groups.get_mut(&id) {
                group.next = Next::First;
                self.untried.insert(group.rank(id));
            }
        }
    }

    /// Returns whether the pass has tried every request.
    pub(super) fn is_exhausted(&self) -> bool {
        self.untried.is_empty()
    }

    /// Returns the next requests of the pass, at most `most`, in the order that they would have if
    /// each were bound.
    pub(super) fn take_next(&mut self, most: usize) -> Vec<Ticket> {
        let mut taken = Vec::new();
        let mut untried = self.untried.iter().copied().peekable();
        // Groups of which some are taken, by the rank that they would then have.
        let mut begun: BinaryHeap<Reverse<(GroupRank, Next)>> = BinaryHeap::new();
        let mut exhausted: Vec<GroupId> = Vec::new();
        while taken.len() < most {
            let is_begun_next = match (begun.peek(), untried.peek()) {
                (Some(Reverse((begun, _))), Some(untried)) => begun < untried,
                (begun, _) => begun.is_some(),
            };
            let picked = if is_begun_next {
                begun.pop().map(|Reverse((rank, next))| (rank, Some(next)))
            } else {
                untried.next().map(|rank| (rank, None))
            };
            let Some(((band, mut reached, tenant), from)) = picked else {
                break;
            };
            let second = [
                begun.peek().map(|Reverse((rank, _))| *rank),
                untried.peek().copied(),
            ];
            let second = second.into_iter().flatten().min();
            let Some(group) = self.groups.get(&(tenant, band)) else {
                continue;
            };
            let mut next = Next::None;
            for (position, virtual_ms) in group.from(from.unwrap_or(group.next)) {
                let is_behind = second.is_some_and(|second| (band, reached, tenant) > second);
                if taken.len() >= most || is_behind {
                    next = Next::From(*position);
                    break;
                }
                taken.push(position.1);
                reached = Milliseconds(reached.0 + virtual_ms);
            }
            if next == Next::None {
                exhausted.push((tenant, band));
            } else {
                begun.push(Reverse(((band, reached, tenant), next)));
            }
        }
        let begun = begun
            .into_iter()
            .map(|Reverse(((band, _, tenant), next))| ((tenant, band), next));
        let begun: Vec<(GroupId, Next)> = begun.collect();
        for (id, next) in begun {
            self.set_next(id, next);
        }
        for id in exhausted {
            self.set_next(id, Next::None);
        }
        taken
    }

    /// Records how far the pass has come in a group.
    fn set_next(&mut self, id: GroupId, next: Next) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if group.next == Next::First {
            self.tried.push(id);
        }
        group.next = next;
        if next == Next::None {
            let rank = group.rank(id);
            self.untried.remove(&rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A request: tenant, band, length, and what it adds to its tenant's virtual time.
    type Request = (u32, i32, u32, u32);

    fn position(number: usize, (tenant, band, length, _): Request) -> TenantPosition {
        TenantPosition {
            tenant: TenantSlot::numbered(tenant),
            rank: RequestRank {
                band: Reverse(band),
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

    /// Each time the first by band, virtual time, tenant and length, which then adds to its tenant's
    /// time in its band.
    fn naive(requests: &[Request], virtual_ms: &[f64], most: usize) -> Vec<Ticket> {
        let mut reached: BTreeMap<(i32, u32), f64> = BTreeMap::new();
        let mut left: Vec<(usize, Request)> = requests.iter().copied().enumerate().collect();
        let mut taken = Vec::new();
        while taken.len() < most && !left.is_empty() {
            let key = |&(number, (tenant, band, length, _)): &(usize, Request)| {
                let added = reached.get(&(band, tenant)).copied().unwrap_or_default();
                let virtual_ms = Milliseconds(virtual_ms[tenant as usize] + added);
                (Reverse(band), virtual_ms, tenant, length, number)
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
