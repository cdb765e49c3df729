//! The requests that wait for room ([`crate::admission`]).

use std::{cmp::Reverse, time::Duration};

use kv_blocks::{Moment, Target};

use super::{QueueId, RoomPlace, RoomTerms, TargetAvailability, WaitQueue};
use crate::{JobTenant, RoomWait, Ticket, admission::RoomShortage};

/// Most queues whose requests are tried for room in one second: the others follow in the next. Also
/// the most whose requests count as before another one.
const MOST_ROOM_QUEUES: usize = 64;

/// Most requests whose wait for room ends in one second because admission was switched off.
const MOST_ENDED_WAITS: usize = 1024;

impl WaitQueue {
    /// Records that a request has no room anywhere: it leaves the order, and is due later. `wait`: how
    /// long it will wait, if it begins to wait now.
    pub(crate) fn wait_for_room(
        &mut self,
        ticket: Ticket,
        shortage: RoomShortage,
        wait: Option<RoomWait>,
    ) {
        let Some(request) = self.requests.get_mut(&ticket) else {
            return;
        };
        match &mut request.room {
            Some(room) => room.shortage = shortage,
            None => request.room = Some(Box::new(RoomTerms { shortage, wait })),
        }
        if request.waits_for_room {
            return;
        }
        self.waiting_work
            .replace(request.share.tenant, request.expected.take(), None);
        let virtual_ms = self.shares.virtual_ms(request.share);
        let added_ms = self.shares.added_ms(request.share);
        self.queues.change(request.queue, |queue| {
            queue.remove(ticket, request);
            request.waits_for_room = true;
            request.terms.until = request.room_until;
            queue.insert(ticket, request, virtual_ms, added_ms);
        });
        let counted = (request.share.tenant, request.bytes);
        self.count_room(counted, true);
    }

    /// Records that a request that waited for room has some: it takes its place in the order, and waits
    /// for a backlog no longer than others do from now on.
    pub(crate) fn has_room(&mut self, now: Moment, ticket: Ticket, wait: Duration) {
        let request = self.requests.get_mut(&ticket);
        let Some(request) = request.filter(|request| request.waits_for_room) else {
            return;
        };
        let virtual_ms = self.shares.virtual_ms(request.share);
        let added_ms = self.shares.added_ms(request.share);
        self.queues.change(request.queue, |queue| {
            queue.remove(ticket, request);
            request.waits_for_room = false;
            request.terms.until = request.room_until.min(now + wait);
            queue.insert(ticket, request, virtual_ms, added_ms);
        });
        let counted = (request.share.tenant, request.bytes);
        self.count_room(counted, false);
    }

    /// Offers their open targets to the requests that wait for room, which becomes free with time.
    pub(crate) fn room_may_be_free(&mut self, now: Moment, availability: TargetAvailability<'_>) {
        let waiting = self.queues.with_room_waiters(self.room_turn);
        let waiting: Vec<QueueId> = waiting.take(MOST_ROOM_QUEUES).collect();
        for id in waiting {
            self.offer_all_again(now, id, availability);
            self.room_turn = id;
        }
    }

    /// Ends the waits for room because no request is tested any more: some requests take their places in
    /// the order now, and the others with the next calls.
    pub(crate) fn end_room_waits(
        &mut self,
        now: Moment,
        wait: Duration,
        availability: TargetAvailability<'_>,
    ) {
        let mut left = MOST_ENDED_WAITS;
        let waiting = self.queues.with_room_waiters(self.room_turn);
        let waiting: Vec<QueueId> = waiting.take(MOST_ENDED_WAITS).collect();
        for id in waiting {
            let Some(queue) = self.queues.get(id) else {
                continue;
            };
            let tickets: Vec<Ticket> = queue.room().arrivals().take(left).collect();
            left -= tickets.len();
            for ticket in tickets {
                self.has_room(now, ticket, wait);
            }
            self.offer_all_again(now, id, availability);
            if left == 0 {
                return;
            }
        }
    }

    /// Returns the number of requests that wait for room.
    pub(crate) fn waiting_for_room(&self) -> usize {
        self.queues.waiting_for_room()
    }

    /// Returns since when the first of the requests has waited that wait for room and may go to
    /// `target`; `None`: none does.
    pub(crate) fn waiting_for_room_since(&self, target: Target) -> Option<Moment> {
        let queues = self.queues.with_room_waiters_for(target);
        queues.filter_map(|(_, queue)| queue.room().since()).min()
    }

    /// Returns the most targets that a request waits for which waits for room and may go to `target`.
    pub(crate) fn most_room_targets(&self, target: Target) -> usize {
        let queues = self.queues.with_room_waiters_for(target);
        let targets = queues.map(|(_, queue)| queue.targets.len());
        targets.max().unwrap_or(1)
    }

    /// Returns the place of one more request that would wait for room and may go to `target`.
    pub(crate) fn room_before(
        &self,
        target: Target,
        tenant: &JobTenant<'_>,
        priority: i32,
    ) -> RoomPlace {
        let band = Reverse(priority);
        let least = |band| self.queues.least_contending_ms(band);
        let mut before = RoomPlace::default();
        let queues = self.queues.with_room_waiters_for(target);
        for (id, queue) in queues.take(MOST_ROOM_QUEUES) {
            let (slot, virtual_ms) = self.shares.start_in(tenant, (id, band), &least);
            before = before.behind(queue.room().place_of_new((slot, band), virtual_ms));
        }
        before
    }

    /// Returns the time to compute the prompts of the requests that wait for room and may go to
    /// `target`.
    pub(crate) fn room_need_ms(&self, target: Target) -> f64 {
        let queues = self.queues.with_room_waiters_for(target);
        queues.map(|(_, queue)| queue.room().need_ms()).sum()
    }

    /// Returns the requests that wait for room, at most `most`, each with its place among those that
    /// wait for the same targets.
    pub(crate) fn room_line(&self, most: usize) -> Vec<(RoomPlace, Ticket)> {
        let ids = self.queues.with_room_waiters(QueueId::default());
        let queues = ids.filter_map(|id| self.queues.get(id));
        let turns = queues.flat_map(|queue| queue.room().turns());
        turns.take(most).collect()
    }
}
