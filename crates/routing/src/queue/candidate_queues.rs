//! The queues of all sets of targets, and their scheduled times.
//!
//! Queues that share a target contend for it: a tenant that comes to one where nobody waits starts
//! where those of the others are, and of queues whose passes are due at the same moment the one that
//! had a request bound longest ago is first.
//!
//! **Invariant**: the scheduled times are those of the queues: a queue changes in
//! [`CandidateQueues::change`] only, or in a way that moves none of its times.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, Target};

use super::{QueueId, TargetAvailability, candidate_queue::CandidateQueue, shares::QueueBand};

/// Most other queues that are asked who waits in them, when a tenant comes to a queue where nobody
/// does.
const MOST_CONTENDING: usize = 256;

/// When the pass of a queue is due, and [`CandidateQueue::last_bound`], the least of which is first
/// among those that are due at that moment.
type Look = (Moment, u64, QueueId);

/// One queue for each set of targets.
#[derive(Debug, Default)]
pub(super) struct CandidateQueues {
    queues: HashMap<QueueId, CandidateQueue, FixedState>,
    by_targets: HashMap<Arc<[Target]>, QueueId, FixedState>,
    by_target: HashMap<Target, Vec<QueueId>, FixedState>,
    /// When the next pass of each queue is due.
    looks: BTreeSet<Look>,
    /// When the first request of each queue is due.
    due: BTreeSet<(Moment, QueueId)>,
    /// The queues with requests that wait for room, and the number of these.
    room: BTreeSet<QueueId>,
    room_requests: usize,
    /// The same queues by their targets.
    room_by_target: HashMap<Target, BTreeSet<QueueId>, FixedState>,
    /// Number of queues so far.
    ids: u64,
    /// Number of requests bound so far.
    bound: u64,
}

impl CandidateQueues {
    pub(super) fn get(&self, id: QueueId) -> Option<&CandidateQueue> {
        self.queues.get(&id)
    }

    /// Returns a queue for a change that moves none of its scheduled times.
    pub(super) fn get_mut(&mut self, id: QueueId) -> Option<&mut CandidateQueue> {
        self.queues.get_mut(&id)
    }

    /// Returns the numbers of the queues to which `target` belongs.
    pub(super) fn ids_with(&self, target: Target) -> Vec<QueueId> {
        self.by_target.get(&target).cloned().unwrap_or_default()
    }

    /// Returns the queues to which `target` belongs.
    pub(super) fn with(&self, target: Target) -> impl Iterator<Item = &CandidateQueue> {
        let ids = self.by_target.get(&target).into_iter().flatten();
        ids.filter_map(|id| self.queues.get(id))
    }

    /// Returns the queues with requests that wait for room, those after `after` first, and then all
    /// others, in their order.
    pub(super) fn with_room_waiters(&self, after: QueueId) -> impl Iterator<Item = QueueId> + '_ {
        let later = self.room.range((Bound::Excluded(after), Bound::Unbounded));
        later.chain(self.room.range(..=after)).copied()
    }

    /// Returns queues with requests that wait for room and may go to `target`: those that were made
    /// first, at most [`MOST_CONTENDING`], as the router's lock is held.
    pub(super) fn with_room_waiters_for(
        &self,
        target: Target,
    ) -> impl Iterator<Item = (QueueId, &CandidateQueue)> {
        let ids = self.room_by_target.get(&target).into_iter().flatten();
        ids.take(MOST_CONTENDING)
            .filter_map(|id| Some((*id, self.queues.get(id)?)))
    }

    /// Returns the number of requests that wait for room.
    pub(super) fn waiting_for_room(&self) -> usize {
        self.room_requests
    }

    /// Returns the queues with an overdue request, the first due first.
    pub(super) fn overdue(&self, now: Moment) -> impl Iterator<Item = &CandidateQueue> {
        let due = self.due.iter().take_while(move |(until, _)| *until <= now);
        due.filter_map(|(_, id)| self.queues.get(id))
    }

    /// Returns the queues whose next pass is due, the first due first; of several due at the same
    /// moment, the one that had a request bound longest ago.
    pub(super) fn due_for_pass(&self, now: Moment) -> impl Iterator<Item = QueueId> {
        let looks = self.looks.iter().take_while(move |(at, ..)| *at <= now);
        looks.map(|(_, _, id)| *id)
    }

    /// Records that a request of a queue was bound: others have their turn before it has another.
    pub(super) fn record_bound(&mut self, id: QueueId) {
        self.bound += 1;
        let bound = self.bound;
        self.change(id, |queue| queue.last_bound = bound);
    }

    /// Returns the least virtual time of a tenant that waits with this priority in a queue, or if
    /// none does, in a queue that shares a target with it; `None`: none does there either.
    pub(super) fn least_contending_ms(&self, (id, band): QueueBand) -> Option<f64> {
        let queue = self.queues.get(&id)?;
        queue.least_virtual_ms(band).or_else(|| {
            let of_target = |target: &Target| self.by_target.get(target);
            let others = queue.targets.iter().filter_map(of_target).flatten();
            others
                .filter(|other| **other != id)
                .take(MOST_CONTENDING)
                .filter_map(|other| self.queues.get(other)?.least_virtual_ms(band))
                .min_by(f64::total_cmp)
        })
    }

    /// Returns whether a request that could begin on `target` would overtake a queued one that may
    /// be first.
    pub(super) fn is_contended(&self, target: Target, now: Moment) -> bool {
        self.with(target)
            .any(|queue| queue.is_contended(target, now))
    }

    /// Returns when the next work is due; at once if that is not after now.
    pub(super) fn next_work(&self) -> Option<Moment> {
        let look = self.looks.first().map(|(at, ..)| *at);
        let due = self.due.first().map(|(until, _)| *until);
        look.into_iter().chain(due).min()
    }

    /// Returns the queue of these targets. A new queue offers every target that is open at
    /// `offers_all` to its requests.
    pub(super) fn queue_of(
        &mut self,
        now: Moment,
        availability: TargetAvailability<'_>,
        targets: &Arc<[Target]>,
        offers_all: Option<Moment>,
    ) -> QueueId {
        if let Some(id) = self.by_targets.get(targets) {
            return *id;
        }
        self.ids += 1;
        let id = QueueId(self.ids);
        self.by_targets.insert(Arc::clone(targets), id);
        for target in targets.iter() {
            self.by_target.entry(*target).or_default().push(id);
        }
        self.queues
            .insert(id, CandidateQueue::new(Arc::clone(targets), self.bound));
        self.change(id, |queue| match offers_all {
            Some(then) => queue.open_all(then),
            None => queue.open_with_time(now, &availability),
        });
        id
    }

    /// Changes a queue and updates its scheduled times.
    pub(super) fn change<T: Default>(
        &mut self,
        id: QueueId,
        act: impl FnOnce(&mut CandidateQueue) -> T,
    ) -> T {
        let Some(queue) = self.queues.get_mut(&id) else {
            return T::default();
        };
        let (before, room_before) = ((look_of(id, queue), due_of(id, queue)), queue.room().len());
        let result = act(queue);
        let (after, room_after) = ((look_of(id, queue), due_of(id, queue)), queue.room().len());
        self.room_requests = self.room_requests + room_after - room_before;
        match (room_before, room_after) {
            (0, 1..) => {
                self.room.insert(id);
                for target in queue.targets.iter() {
                    self.room_by_target.entry(*target).or_default().insert(id);
                }
            }
            (1.., 0) => {
                self.room.remove(&id);
                for target in queue.targets.iter() {
                    if let Some(ids) = self.room_by_target.get_mut(target) {
                        ids.remove(&id);
                        if ids.is_empty() {
                            self.room_by_target.remove(target);
                        }
                    }
                }
            }
            _ => {}
        }
        replace(&mut self.looks, before.0, after.0);
        replace(&mut self.due, before.1, after.1);
        result
    }

    /// Drops a queue without requests.
    pub(super) fn drop_if_empty(&mut self, id: QueueId) {
        if self.queues.get(&id).is_none_or(|queue| queue.len() > 0) {
            return;
        }
        let Some(queue) = self.queues.remove(&id) else {
            return;
        };
        self.by_targets.remove(&queue.targets);
        for target in queue.targets.iter() {
            if let Some(ids) = self.by_target.get_mut(target) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_target.remove(target);
                }
            }
        }
        replace(&mut self.looks, look_of(id, &queue), None);
        replace(&mut self.due, due_of(id, &queue), None);
    }
}

fn look_of(id: QueueId, queue: &CandidateQueue) -> Option<Look> {
    Some((queue.look_at?, queue.last_bound, id))
}

fn due_of(id: QueueId, queue: &CandidateQueue) -> Option<(Moment, QueueId)> {
    Some((queue.first_due()?, id))
}

/// Replaces an entry of a schedule.
fn replace<T: Ord>(schedule: &mut BTreeSet<T>, before: Option<T>, after: Option<T>) {
    if before == after {
        return;
    }
    if let Some(before) = before {
        schedule.remove(&before);
    }
    schedule.extend(after);
}
