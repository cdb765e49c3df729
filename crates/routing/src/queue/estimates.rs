//! New estimates of queued requests, and what they say of their order and of the targets.

use std::mem;

use kv_blocks::{Moment, Target};

use super::{
    ExpectedTarget, PickRole, QueueId, QueueSettings, ReleaseCandidate, RequestRank, TtftNeeds,
    WaitQueue, WaitingRequest,
    candidate_queue::{CandidateQueue, position},
    tenant_order::TenantPosition,
};
use crate::{JobTenant, Ticket};

/// Most requests of a queue that lose their places for lack of slack in one step of a pass.
const MOST_DEMOTED: usize = 64;

/// Most requests of a queue that are counted as before a new one, and most queues in which they are
/// counted: the router's lock is held.
const MOST_AHEAD: usize = 64;
const MOST_QUEUES_AHEAD: usize = 64;

/// Which requests of the queue are before one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitingPlace {
    /// Those that may be, of all that wait.
    Among(WaitingRequest),
    /// Those that the pass of its queue has left: it is tried next.
    Next(QueueId, Ticket),
}

impl WaitQueue {
    /// Records the target that a request would get now; `None`: there is none.
    pub(crate) fn set_expected(&mut self, ticket: Ticket, expected: Option<ExpectedTarget>) {
        let Some(request) = self.requests.get_mut(&ticket) else {
            return;
        };
        let expected = expected.filter(|_| !request.waits_for_room);
        let before = mem::replace(&mut request.expected, expected);
        self.waiting_work
            .replace(request.share.tenant, before, expected);
    }

    /// Returns the place of one more request of a tenant.
    pub(crate) fn place_of_new(&self, tenant: &JobTenant<'_>) -> WaitingPlace {
        WaitingPlace::Among(WaitingRequest {
            tenant: self.shares.slot_of(tenant),
            expected: None,
        })
    }

    /// Returns the place of a queued request that is priced for this reason.
    pub(crate) fn place_of(&self, ticket: Ticket, role: PickRole) -> WaitingPlace {
        let Some(request) = self.requests.get(&ticket) else {
            return WaitingPlace::Among(WaitingRequest::default());
        };
        if role == PickRole::Next {
            return WaitingPlace::Next(request.queue, ticket);
        }
        WaitingPlace::Among(WaitingRequest {
            tenant: Some(request.share.tenant),
            expected: request.expected,
        })
    }

    /// Records that the pass leaves a request waiting that it has tried. One that was picked for another
    /// reason, or before the pass began anew, is still to be tried: until then it is before no other.
    pub(crate) fn pass_over(&mut self, pick: &ReleaseCandidate) {
        let request = self.requests.get(&pick.ticket);
        let Some(request) = request.filter(|_| pick.role == PickRole::Next) else {
            return;
        };
        if let Some(expected) = request.expected
            && let Some(queue) = self.queues.get_mut(request.queue)
            && queue.passed_over.pass() == pick.pass
        {
            queue.passed_over.insert(pick.ticket, expected);
        }
    }

    /// Returns the estimated time to compute the prompts of the requests that wait here, would get
    /// `target` now and are before the request at this place, whose prompt takes `prefill_ms` there.
    pub(crate) fn waiting_ms(
        &self,
        target: Target,
        place: WaitingPlace,
        prefill_ms: impl FnOnce() -> f64,
    ) -> f64 {
        match place {
            WaitingPlace::Next(queue, ticket) => {
                let queue = self.queues.get(queue);
                queue.map_or(0.0, |queue| queue.passed_over.before_ms(target, ticket))
            }
            WaitingPlace::Among(_) if self.waiting_work.is_empty() => 0.0,
            WaitingPlace::Among(request) => {
                self.waiting_work.before_ms(target, request, prefill_ms())
            }
        }
    }

    /// Records a new estimate: the time to compute the uncached tokens, and that to the first token.
    pub(crate) fn refresh(
        &mut self,
        now: Moment,
        ticket: Ticket,
        (uncached_ms, needs): (f64, TtftNeeds),
        settings: &QueueSettings,
    ) {
        let Some(request) = self.requests.get_mut(&ticket) else {
            return;
        };
        let (before, start_by) = (position(ticket, request), request.terms.start_by());
        request.terms.uncached_ms = uncached_ms;
        if let Some(target) = &mut request.terms.target {
            target.needs = needs;
        }
        let rank = request.terms.rank(now, settings.ageing);
        if request.rank == rank && request.terms.start_by() == start_by {
            return;
        }
        request.rank = rank;
        if !request.waits_for_room {
            self.move_in_order(before, start_by);
        }
    }

    /// Gives a request of the order, which had this place and last moment to begin, its new place. No
    /// scheduled time of the queue changes.
    fn move_in_order(&mut self, before: TenantPosition, start_by: Option<Moment>) {
        let Some(request) = self.requests.get(&before.ticket) else {
            return;
        };
        let virtual_ms = self.shares.virtual_ms(request.share);
        let added_ms = self.shares.added_ms(request.share);
        if let Some(queue) = self.queues.get_mut(request.queue) {
            queue.remove_from_order(before, start_by);
            queue.insert_in_order(before.ticket, request, (virtual_ms, added_ms));
        }
    }

    /// Moves some requests of a queue that cannot meet their targets any more behind the others of
    /// their tenants.
    pub(super) fn demote_late(&mut self, now: Moment, id: QueueId) {
        let Some(queue) = self.queues.get(id) else {
            return;
        };
        for ticket in queue.too_late(now, MOST_DEMOTED) {
            let Some(request) = self.requests.get_mut(&ticket) else {
                continue;
            };
            let (before, start_by) = (position(ticket, request), request.terms.start_by());
            request.rank.is_late = true;
            self.move_in_order(before, start_by);
        }
    }

    /// Records that no target has capacity for an overdue request: it starts when one has, or its
    /// caller cancels it. It has let others go first for long enough, if it was too late for its
    /// target.
    pub(crate) fn cannot_be_bound(&mut self, ticket: Ticket) {
        let Some(request) = self.requests.get_mut(&ticket) else {
            return;
        };
        let until = request.terms.until;
        self.queues
            .change(request.queue, |queue| queue.cannot_be_bound(ticket, until));
        if request.waits_for_room || request.terms.target.is_none() {
            return;
        }
        let (before, start_by) = (position(ticket, request), request.terms.start_by());
        if let Some(target) = &mut request.terms.target {
            target.is_lapsed = true;
        }
        request.rank.is_late = false;
        self.move_in_order(before, start_by);
    }

    /// Returns a time that a new request with this rank waits at least for `target`: the prompts of its
    /// tenant that are before it, as far as they are among the first [`MOST_AHEAD`] of each of the first
    /// [`MOST_QUEUES_AHEAD`] queues, over the targets that share them.
    pub(crate) fn ahead_ms(
        &self,
        target: Target,
        tenant: &JobTenant<'_>,
        rank: RequestRank,
    ) -> f64 {
        let Some(slot) = self.shares.slot_of(tenant) else {
            return 0.0;
        };
        let ahead = |queue: &CandidateQueue| {
            let tickets = queue.before(slot, rank).take(MOST_AHEAD);
            let requests = tickets.filter_map(|ticket| self.requests.get(&ticket));
            let ms: f64 = requests.map(|request| request.terms.uncached_ms).sum();
            ms / queue.targets.len().max(1) as f64
        };
        let queues = self.queues.with(target).take(MOST_QUEUES_AHEAD);
        queues.map(ahead).sum()
    }
}
