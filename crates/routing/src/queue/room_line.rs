//! The requests of one queue that wait for room.
//!
//! They are not in the order of the others: a pass that tried each of them at every event would
//! find nothing, since room becomes free with time. Each pass tries the first ones, one in rotation, and
//! those whose estimates are refreshed. The first of all is also the one that is let in without room: of the
//! tenant that has received least, the request that arrived first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use kv_blocks::Moment;

use super::{order::Milliseconds, shares::TenantSlot, tenant_order::GroupId};
use crate::Ticket;

/// Most groups whose requests are counted as before another one's.
const MOST_GROUPS: usize = 256;
/// Most microseconds of one prompt: a day.
const MOST_US: f64 = 86_400e6;

/// The requests of one queue that wait for room.
#[derive(Debug, Default)]
pub(super) struct RoomLine {
    /// In the order of arrival, with the microseconds that their prompts take.
    arrivals: BTreeMap<(Moment, Ticket), u64>,
    groups: BTreeMap<GroupId, RoomGroup>,
    /// The groups by priority, and then by what their tenant has received.
    ranked: BTreeSet<(Reverse<i32>, Milliseconds, TenantSlot)>,
    need_us: u64,
    /// The last request that was tried out of its turn.
    tried: Option<(Moment, Ticket)>,
}

/// A tenant's requests of one priority.
#[derive(Debug)]
struct RoomGroup {
    tenant_virtual: Milliseconds,
    waiting: BTreeSet<(Moment, Ticket)>,
    need_us: u64,
}

/// What is let in before a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoomPlace {
    /// Number of requests.
    pub(crate) ahead: usize,
    /// Microseconds that their prompts take.
    before_us: u64,
}

impl RoomPlace {
    /// Returns the milliseconds that the prompts before the request take.
    pub(crate) fn before_ms(self) -> f64 {
        self.before_us as f64 / 1e3
    }

    /// Returns the place behind these and so many others.
    pub(super) fn behind(self, other: Self) -> Self {
        Self {
            ahead: self.ahead + other.ahead,
            before_us: self.before_us.saturating_add(other.before_us),
        }
    }
}

impl RoomLine {
    pub(super) fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns the time to compute the prompts of all.
    pub(super) fn need_ms(&self) -> f64 {
        self.need_us as f64 / 1e3
    }

    /// Adds a request with its arrival, whose prompt takes this long. Its tenant has this virtual time.
    pub(super) fn insert(
        &mut self,
        id: GroupId,
        at: (Moment, Ticket),
        (prefill_ms, virtual_ms): (f64, f64),
    ) {
        let us = microseconds(prefill_ms);
        let before = self.arrivals.insert(at, us).unwrap_or(0);
        self.need_us = self.need_us.saturating_sub(before) + us;
        let group = self.groups.entry(id).or_insert_with(|| RoomGroup {
            tenant_virtual: Milliseconds(virtual_ms),
            waiting: BTreeSet::new(),
            need_us: 0,
        });
        group.waiting.insert(at);
        group.need_us = group.need_us.saturating_sub(before) + us;
        self.ranked.insert((id.1, group.tenant_virtual, id.0));
    }

    pub(super) fn remove(&mut self, id: GroupId, at: (Moment, Ticket)) {
        let Some(us) = self.arrivals.remove(&at) else {
            return;
        };
        self.need_us = self.need_us.saturating_sub(us);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        group.waiting.remove(&at);
        group.need_us = group.need_us.saturating_sub(us);
        if group.waiting.is_empty() {
            self.ranked.remove(&(id.1, group.tenant_virtual, id.0));
            self.groups.remove(&id);
        }
    }

    /// Records the virtual time of a tenant at this priority.
    pub(super) fn set_tenant_virtual(&mut self, id: GroupId, virtual_ms: f64) {
        if let Some(group) = self.groups.get_mut(&id) {
            self.ranked.remove(&(id.1, group.tenant_virtual, id.0));
            group.tenant_virtual = Milliseconds(virtual_ms);
            self.ranked.insert((id.1, group.tenant_virtual, id.0));
        }
    }

    /// Returns the least virtual time of a tenant with requests of this priority.
    pub(super) fn least_virtual_ms(&self, band: Reverse<i32>) -> Option<f64> {
        let from = (band, Milliseconds(f64::NEG_INFINITY), TenantSlot::FIRST);
        let (other, least, _) = self.ranked.range(from..).next()?;
        (*other == band).then_some(least.0)
    }

    /// Returns the first request of the tenant that has received least, of the highest priority.
    pub(super) fn first(&self) -> Option<Ticket> {
        let (band, _, tenant) = self.ranked.first()?;
        let (_, ticket) = self.groups.get(&(*tenant, *band))?.waiting.first()?;
        Some(*ticket)
    }

    /// Returns the requests in the order of arrival.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.arrivals.keys().map(|(_, ticket)| *ticket)
    }

    /// Returns the requests to be tried for room: the first, which is let in without room before the
    /// others; up to `most` with those that arrived first; and one of all in rotation, as each may fit
    /// where those before it do not.
    pub(super) fn take_next(&mut self, most: usize) -> Vec<Ticket> {
        let first = self.first();
        let others = self.arrivals().filter(|ticket| Some(*ticket) != first);
        let more = others.take(most.saturating_sub(2));
        let mut next: Vec<Ticket> = first.into_iter().chain(more).collect();
        let from = self.tried.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.arrivals.range((from, Bound::Unbounded));
        let untried = behind.chain(self.arrivals.iter());
        let mut untried = untried.map(|(at, _)| *at);
        if let Some(at) = untried.find(|(_, ticket)| !next.contains(ticket)) {
            self.tried = Some(at);
            next.push(at.1);
        }
        next
    }

    /// Returns since when the first of them has waited.
    pub(super) fn since(&self) -> Option<Moment> {
        let ((since, _), _) = self.arrivals.first_key_value()?;
        Some(*since)
    }

    /// Returns the place of one more request of a tenant, which has this virtual time: behind all groups
    /// that are ranked before, and behind its own.
    pub(super) fn place_of_new(
        &self,
        (tenant, band): (Option<TenantSlot>, Reverse<i32>),
        virtual_ms: f64,
    ) -> RoomPlace {
        let own = tenant.map(|tenant| (tenant, band));
        let end = (band, Milliseconds(virtual_ms), TenantSlot::FIRST);
        let ranked = self.ranked.range(..end).take(MOST_GROUPS);
        ranked
            .map(|(band, _, tenant)| (*tenant, *band))
            .filter(|id| Some(*id) != own)
            .chain(own)
            .filter_map(|id| self.groups.get(&id))
            .fold(RoomPlace::default(), |place, group| {
                place.behind(RoomPlace {
                    ahead: group.waiting.len(),
                    before_us: group.need_us,
                })
            })
    }

    /// Returns the requests in the order in which they are let in without room if the ranks of their
    /// groups stay, each with its place.
    pub(super) fn turns(&self) -> impl Iterator<Item = (RoomPlace, Ticket)> + '_ {
        let (groups, arrivals) = (&self.groups, &self.arrivals);
        let ranked = self.ranked.iter();
        let waiting = ranked
            .filter_map(move |(band, _, tenant)| groups.get(&(*tenant, *band)))
            .flat_map(|group| group.waiting.iter());
        let mut next = RoomPlace::default();
        waiting.map(move |at| {
            let place = next;
            next = place.behind(RoomPlace {
                ahead: 1,
                before_us: arrivals.get(at).copied().unwrap_or(0),
            });
            (place, at.1)
        })
    }
}

fn microseconds(ms: f64) -> u64 {
    // A float cast saturates, and takes no number for 0.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is within its bounds"
    )]
    let us = (ms * 1e3).clamp(0.0, MOST_US) as u64;
    us
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn group(slot: u32, priority: i32) -> GroupId {
        (TenantSlot::numbered(slot), Reverse(priority))
    }

    fn place(s: u64, ticket: u64) -> (Moment, Ticket) {
        (Moment::at(Duration::from_secs(s)), Ticket(ticket))
    }

    #[test]
    fn the_first_is_the_oldest_of_the_tenant_that_has_received_least() {
        let mut line = RoomLine::default();
        line.insert(group(1, 0), place(5, 3), (1000.0, 50.0));
        line.insert(group(1, 0), place(2, 4), (2000.0, 50.0));
        line.insert(group(2, 0), place(3, 5), (4000.0, 90.0));
        assert_eq!(line.first(), Some(Ticket(4)));
        line.set_tenant_virtual(group(1, 0), 91.0);
        assert_eq!(line.first(), Some(Ticket(5)));
        assert_eq!(line.least_virtual_ms(Reverse(0)), Some(90.0));
        // A higher priority goes first, whatever its tenant has received.
        line.insert(group(1, 7), place(9, 6), (f64::NAN, 1e9));
        assert_eq!(line.first(), Some(Ticket(6)));
        assert_eq!(line.least_virtual_ms(Reverse(0)), Some(90.0));
        assert_eq!(line.least_virtual_ms(Reverse(1)), None);
        let order: Vec<_> = line.arrivals().map(|ticket| ticket.0).collect();
        assert_eq!(order, [4, 5, 3, 6]);
        assert_eq!(line.since(), Some(place(2, 4).0));
        assert_eq!((line.len(), line.need_ms()), (4, 7000.0));
    }

    #[test]
    fn a_place_counts_the_groups_that_are_ranked_before_and_the_own_one() {
        let mut line = RoomLine::default();
        line.insert(group(1, 0), place(5, 3), (1000.0, 50.0));
        line.insert(group(1, 0), place(2, 4), (2000.0, 50.0));
        line.insert(group(2, 0), place(3, 5), (4000.0, 90.0));
        line.insert(group(2, 7), place(9, 6), (8000.0, 1e9));
        let tenant = |slot| Some(TenantSlot::numbered(slot));
        for (tenant, priority, virtual_ms, expected) in [
            // A tenant without requests starts where the first one is, and has the next turn.
            (None, 0, 50.0, (1, 8000.0)),
            (tenant(3), 0, 51.0, (3, 11_000.0)),
            (tenant(1), 0, 50.0, (3, 11_000.0)),
            (tenant(2), 0, 90.0, (4, 15_000.0)),
            (None, -1, 0.0, (4, 15_000.0)),
            (None, 7, 0.0, (0, 0.0)),
            (tenant(2), 7, 1e9, (1, 8000.0)),
            (None, 8, 0.0, (0, 0.0)),
        ] {
            let found = line.place_of_new((tenant, Reverse(priority)), virtual_ms);
            let case = (tenant, priority, virtual_ms);
            assert_eq!((found.ahead, found.before_ms()), expected, "{case:?}");
        }
        let turns = line.turns();
        let turns: Vec<_> = turns
            .map(|(place, ticket)| (ticket.0, place.ahead, place.before_ms()))
            .collect();
        assert_eq!(
            turns,
            [
                (6, 0, 0.0),
                (4, 1, 8000.0),
                (3, 2, 10_000.0),
                (5, 3, 11_000.0)
            ]
        );
    }

    #[test]
    fn the_first_is_always_tried_and_each_of_the_others_in_turn() {
        let mut line = RoomLine::default();
        for number in 1..=5 {
            line.insert(group(1, 0), place(number, number), (1000.0, 0.0));
        }
        let mut tried = |most| -> Vec<u64> {
            let next = line.take_next(most).into_iter();
            next.map(|ticket| ticket.0).collect()
        };
        // A pass that has no budget but for one request tries two all the same.
        let passes = [(); 5].map(|()| tried(1));
        assert_eq!(passes, [[1, 2], [1, 3], [1, 4], [1, 5], [1, 2]]);
        assert_eq!([tried(4), tried(4)], [[1, 2, 3, 4], [1, 2, 3, 5]]);
        assert_eq!(tried(9), [1, 2, 3, 4, 5]);
        line.remove(group(1, 0), place(1, 1));
        assert_eq!(line.take_next(1), [Ticket(2), Ticket(3)]);
    }

    #[test]
    fn an_empty_line_needs_nothing() {
        let mut line = RoomLine::default();
        line.insert(group(1, 0), place(5, 3), (1000.0, 0.0));
        line.insert(group(1, 0), place(5, 3), (3000.0, 0.0));
        assert_eq!((line.len(), line.need_ms()), (1, 3000.0));
        line.remove(group(1, 0), place(5, 3));
        line.remove(group(1, 0), place(5, 3));
        assert_eq!((line.len(), line.need_ms()), (0, 0.0));
        assert_eq!(
            (line.first(), line.least_virtual_ms(Reverse(0))),
            (None, None)
        );
    }
}
