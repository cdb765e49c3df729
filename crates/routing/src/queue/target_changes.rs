//! Changes of targets, which are offered to the requests that may go there.

use std::sync::Arc;

use kv_blocks::{Moment, Target};

use super::{QueueId, TargetAvailability, WaitQueue, candidate_queue::CandidateQueue};
use crate::Ticket;

impl WaitQueue {
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

    /// Records that a request that could be bound to `target` was not, because enough were.
    pub(crate) fn offer_again(&mut self, now: Moment, ticket: Ticket, target: Target) {
        if let Some(id) = self.requests.get(&ticket).map(|request| request.queue) {
            self.queues
                .change(id, |queue| queue.offer_again(now, target));
        }
    }

    /// Offers the open targets of a queue to its requests once more.
    pub(crate) fn offer_all_again(
        &mut self,
        now: Moment,
        id: QueueId,
        availability: TargetAvailability<'_>,
    ) {
        self.queues.change(id, |queue| {
            let targets = Arc::clone(&queue.targets);
            for target in targets.iter() {
                if availability.is_available(now, *target, queue) {
                    queue.open(now, *target);
                }
            }
        });
    }
}
