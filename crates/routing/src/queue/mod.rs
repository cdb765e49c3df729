//! The queue of requests that wait in the router instead of at an engine.
//!
//! An engine computes prompts in the order of arrival: a request that is bound to a busy engine
//! waits behind a long prompt though another engine may be free before. Here it waits until a
//! target can begin, and the shortest go first. There is one queue for each set of targets that can
//! serve a request, so a saturated model delays no other; the order within all of them is one
//! function, [`OrderTerms::key`]. A request that has used up its wait budget is bound whatever the
//! backlog of its target. A request that waits for room ([`crate::admission`]) stands beside the
//! order until it has some, and is bound for lack of time only at the end of a longer limit.
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
mod capacity;
mod charges;
mod entry;
mod estimates;
mod membership;
mod order;
mod passed_over;
mod pick;
mod request;
mod room_line;
mod room_waits;
mod settings;
mod shares;
mod target_changes;
mod tenant_order;
mod waiting_work;
mod work;

use std::{collections::BTreeMap, hash::RandomState, sync::Arc};

use kv_blocks::{Moment, Target};

pub(crate) use self::{
    availability::TargetAvailability,
    candidate_set::{CandidateSet, CandidateSets, fingerprint, shared},
    entry::{QueueEntry, RoomTerms, WaitTerms},
    estimates::WaitingPlace,
    order::{OrderTerms, RequestRank, TargetTerms, TtftNeeds},
    pick::{PickRole, RELEASE_BUDGET, ReleaseBudget, ReleaseCandidate, ReleaseStep},
    request::{QueueId, QueuedJob, QueuedRequest},
    room_line::RoomPlace,
    shares::{QueueEnd, QueuedShare, TenantSlot},
    waiting_work::{ExpectedTarget, WaitingRequest},
    work::{RequestWork, decode_ms},
};
use self::{
    candidate_queues::CandidateQueues,
    order::OrderKey,
    shares::{QueueBand, TenantShares},
    waiting_work::WaitingWork,
};
pub use self::{
    order::EnginePriority,
    settings::{QueueLimit, QueueSettings, WaitBudget, WaitReason},
    work::ReportedWork,
};
use crate::Ticket;

/// All queued requests.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// Ordered, because a hash table that grows moves all entries under the lock.
    requests: BTreeMap<Ticket, QueuedRequest>,
    queues: CandidateQueues,
    sets: CandidateSets,
    shares: TenantShares,
    waiting_work: WaitingWork,
    bytes: u64,
    /// Of the requests that wait for room.
    room_bytes: u64,
    tickets: u64,
    /// The last queue whose requests were tried for room.
    room_turn: QueueId,
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

    /// Returns the hasher of candidate lists.
    pub(crate) fn hasher(&self) -> RandomState {
        self.sets.hasher()
    }

    /// Returns the candidate lists that may be equal to one with this fingerprint.
    pub(crate) fn alike(&self, fingerprint: u64) -> Vec<Arc<CandidateSet>> {
        self.sets.alike(fingerprint)
    }

    /// Returns whether a request that could begin on `target` would overtake a queued one that may
    /// be first.
    pub(crate) fn is_contended(&self, target: Target, now: Moment) -> bool {
        self.queues.is_contended(target, now)
    }

    /// Returns whether there are more requests to be tried in the queue of a request.
    pub(crate) fn is_pass_due(&self, now: Moment, ticket: Ticket) -> bool {
        let id = self.requests.get(&ticket).map(|request| request.queue);
        id.and_then(|id| self.queues.get(id)?.look_at)
            .is_some_and(|at| at <= now)
    }

    /// Returns when the next work is due; at once if that is not after now.
    pub(crate) fn next_work(&self) -> Option<Moment> {
        self.queues.next_work()
    }
}

/// Returns what tells the least virtual time of those that wait in a queue with a priority.
fn least_virtual(queues: &CandidateQueues) -> impl Fn(QueueBand) -> Option<f64> + '_ {
    |(id, band)| queues.get(id)?.least_virtual_ms(band)
}
