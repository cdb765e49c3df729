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

use std::{collections::BTreeMap, hash::RandomState, sync::Arc, time::Duration};

use kv_blocks::{Moment, Target};

pub use self::settings::{QueueSettings, WaitBudget, WaitReason};
pub(crate) use self::{
    availability::TargetAvailability,
    candidate_set::{CandidateSet, CandidateSets, fingerprint, shared},
    entry::{QueueEntry, WaitTerms},
    order::{OrderKey, OrderTerms, engine_priority},
    pick::{RELEASE_BUDGET, ReleaseCandidate},
    request::{QueueId, QueuedJob, QueuedRequest},
};
use self::{candidate_queue::CandidateQueue, candidate_queues::CandidateQueues};
use crate::Ticket;

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

    /// Returns whether one more request fits that retains this many bytes.
    pub(crate) fn has_capacity(&self, settings: &QueueSettings, bytes: u64) -> bool {
        self.requests.len() < settings.max_entries
            && self.bytes.saturating_add(bytes) <= settings.max_bytes
    }

    /// Returns the hasher of candidate lists.
    pub(crate) fn hasher(&self) -> RandomState {
        self.sets.hasher()
    }

    /// Returns the candidate lists that may be equal to one with this fingerprint.
    pub(crate) fn alike(&self, fingerprint: u64) -> Vec<Arc<CandidateSet>> {
        self.sets.alike(fingerprint)
    }

    /// Adds a job; `None`: there is no capacity.
    pub(crate) fn push(
        &mut self,
        now: Moment,
        settings: &QueueSettings,
        availability: TargetAvailability<'_>,
        entrant: QueueEntry,
    ) -> Option<Ticket> {
        let QueueEntry {
            job,
            terms,
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
        if !self.has_capacity(settings, bytes.saturating_add(lists)) {
            return None;
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let key = terms.waiting_key(settings.ageing);
        let queue = self.queues.queue_of(
            now,
            availability,
            &job.pool.set.targets,
            winner.is_none().then_some(now),
        );
        self.enter(
            ticket,
            QueuedRequest {
                terms,
                key,
                bytes,
                queue,
                job: Arc::new(job),
                minds_backlog,
            },
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
        Some(ticket)
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
        let Some(mut request) = self.remove(ticket) else {
            return false;
        };
        let before = Arc::clone(&request.job.pool.set.targets);
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
        self.enter(ticket, request);
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

    /// Removes a request.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<QueuedRequest> {
        let request = self.requests.remove(&ticket)?;
        let lists: u64 = request.job.sets().map(|set| self.sets.release(set)).sum();
        self.bytes = self
            .bytes
            .saturating_sub(request.bytes)
            .saturating_sub(lists);
        self.queues
            .change(request.queue, |queue| queue.remove(ticket, &request));
        self.queues.drop_if_empty(request.queue);
        Some(request)
    }

    /// Records a new estimate.
    pub(crate) fn refresh(&mut self, ticket: Ticket, uncached_ms: f64, settings: &QueueSettings) {
        let Some(request) = self.requests.get_mut(&ticket) else {
            return;
        };
        request.terms.uncached_ms = uncached_ms;
        let (before, key) = (request.key, request.terms.waiting_key(settings.ageing));
        if before != key {
            request.key = key;
            // No scheduled time of the queue changes.
            if let Some(queue) = self.queues.get_mut(request.queue) {
                queue.reposition(ticket, Some(before), key);
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

    fn enter(&mut self, ticket: Ticket, request: QueuedRequest) {
        let lists: u64 = request.job.sets().map(|set| self.sets.retain(set)).sum();
        self.bytes = self
            .bytes
            .saturating_add(request.bytes)
            .saturating_add(lists);
        self.queues
            .change(request.queue, |queue| queue.insert(ticket, &request));
        self.requests.insert(ticket, request);
    }
}
