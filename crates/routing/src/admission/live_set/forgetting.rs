//! Ended requests are forgotten: their time is over, or their blocks are evicted or gone.

use kv_blocks::{Moment, Target, WorkerId};

use super::{EndedKey, LiveBlocks, LiveSequence, LiveSets, MOST_ENDED, MOST_SPANS};
use crate::{ReservationId, ledger::NodeId};

/// Most ended requests that one call forgets, under the router's lock; the next calls forget the others.
pub(super) const MOST_DROPPED: usize = 256;

impl LiveSets {
    /// Records how many blocks the cache of `target` holds by its events. An empty one was reset: what
    /// it used before is gone.
    pub(crate) fn observe_held(&mut self, now: Moment, target: Target, held: u64) {
        if let Some(live) = self.targets.get_mut(&target) {
            live.capacity.observe(held);
            if held == 0 {
                live.gone = live.ended.keys().next_back().copied();
            }
        }
        self.drop_gone(target);
        self.expire(now, target);
    }

    /// Forgets the ended requests of a removed worker.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        let of_worker = |target: &&Target| target.worker == worker;
        let targets: Vec<Target> = self.targets.keys().filter(of_worker).copied().collect();
        for target in targets {
            if let Some(live) = self.targets.get_mut(&target) {
                live.forgotten = true;
                live.gone = live.ended.keys().next_back().copied();
            }
            self.drop_gone(target);
            self.drop_if_unused(target);
        }
    }

    /// Forgets the requests of `target` whose time is over.
    pub(super) fn expire(&mut self, now: Moment, target: Target) {
        for _ in 0..MOST_DROPPED {
            if self.oldest(target).is_none_or(|(expires, _)| expires > now) {
                return;
            }
            self.drop_oldest(target);
        }
    }

    /// Forgets the requests of `target` whose blocks are gone.
    fn drop_gone(&mut self, target: Target) {
        let Some(gone) = self.targets.get(&target).and_then(|live| live.gone) else {
            return;
        };
        for _ in 0..MOST_DROPPED {
            if self.oldest(target).is_none_or(|oldest| oldest > gone) {
                if let Some(live) = self.targets.get_mut(&target) {
                    live.gone = None;
                }
                return;
            }
            self.drop_oldest(target);
        }
    }

    /// Forgets the requests of `target` whose blocks have been evicted for newer ones.
    pub(super) fn trim(&mut self, target: Target) {
        for _ in 0..MOST_DROPPED {
            if !self.exceeds_capacity(target) || !self.drop_oldest(target) {
                return;
            }
        }
    }

    /// Returns the request of `target` that ended first.
    fn oldest(&self, target: Target) -> Option<(Moment, ReservationId)> {
        self.targets.get(&target)?.ended.keys().next().copied()
    }

    fn exceeds_capacity(&self, target: Target) -> bool {
        self.targets.get(&target).is_some_and(|live| {
            let capacity = live.capacity.blocks();
            capacity.is_some_and(|capacity| live.blocks > capacity)
        })
    }

    pub(super) fn has_space(&self, spans: usize) -> bool {
        self.ended < MOST_ENDED && self.spans + spans <= MOST_SPANS
    }

    /// Forgets the ended requests of `target` that end at a node.
    pub(super) fn drop_ended_at(&mut self, node: NodeId, target: Target) {
        let Some(ends) = self.ends.get(&node) else {
            return;
        };
        let here = ends.iter().filter(|key| key.target == target);
        let keys: Vec<EndedKey> = here.copied().collect();
        for key in keys {
            self.drop_ended(key);
        }
    }

    /// Forgets the request of `target` that ended first; `false`: there is none.
    pub(super) fn drop_oldest(&mut self, target: Target) -> bool {
        let Some((expires, id)) = self.oldest(target) else {
            return false;
        };
        self.drop_ended(EndedKey {
            target,
            expires,
            id,
        });
        true
    }

    fn drop_ended(&mut self, key: EndedKey) {
        let Some(live) = self.targets.get_mut(&key.target) else {
            return;
        };
        let Some(sequence) = live.ended.remove(&(key.expires, key.id)) else {
            return;
        };
        self.ended -= 1;
        self.spans -= sequence.spans;
        if let Some(end) = sequence.end
            && let Some(ends) = self.ends.get_mut(&end)
        {
            ends.retain(|other| *other != key);
            if ends.is_empty() {
                self.ends.remove(&end);
            }
        }
        self.release(key.target, &sequence);
    }

    /// Takes the blocks of a request off its target.
    pub(super) fn release(&mut self, target: Target, sequence: &LiveSequence) {
        let freed = self.tree.remove(target, sequence.end) * sequence.span + sequence.rest;
        if let Some(live) = self.targets.get_mut(&target) {
            live.blocks = live.blocks.saturating_sub(freed);
        }
        self.drop_if_unused(target);
    }

    fn drop_if_unused(&mut self, target: Target) {
        let is_unused =
            |live: &LiveBlocks| live.forgotten && live.open == 0 && live.ended.is_empty();
        if self.targets.get(&target).is_some_and(is_unused) {
            self.targets.remove(&target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::live_set::fixture::{at, live_sets, prompt, run, target};

    #[test]
    fn what_a_cache_cannot_hold_was_evicted_in_the_order_of_last_use() {
        let mut sets = live_sets();
        run(&mut sets, 1, (0, 1), 1, &[1, 1, 1, 1]);
        run(&mut sets, 2, (2, 3), 1, &[2, 2, 2, 2]);
        assert_eq!(sets.blocks(at(4), target(1)), 8);
        run(&mut sets, 3, (4, 5), 1, &[3, 3, 3, 3]);
        assert_eq!(sets.blocks(at(5), target(1)), 8);
        let known = |labels: &[u8]| sets.known(&prompt(labels)).of(target(1));
        assert_eq!([known(&[1; 4]), known(&[2; 4]), known(&[3; 4])], [0, 4, 4]);
    }

    #[test]
    fn what_was_in_a_cache_that_is_empty_now_does_not_count() {
        let mut sets = live_sets();
        run(&mut sets, 1, (0, 1), 1, &[1, 2, 3]);
        sets.open(at(2), ReservationId(2), target(1), &prompt(&[4, 5]));
        sets.observe_held(at(3), target(1), 5);
        assert_eq!(sets.blocks(at(3), target(1)), 5);
        sets.observe_held(at(3), target(1), 0);
        assert_eq!(sets.blocks(at(3), target(1)), 2);
        assert_eq!(sets.followed(), [target(1)]);
    }

    #[test]
    fn a_call_forgets_a_bounded_number_of_requests_and_the_next_ones_the_others() {
        let filled = || {
            let mut sets = live_sets();
            for id in 0..600 {
                sets.open(at(0), ReservationId(id), target(1), &prompt(&labels(id)));
                sets.end(at(0), ReservationId(id), target(1));
            }
            assert_eq!(sets.ended, 600);
            sets
        };
        let left = |sets: &mut LiveSets, call: &dyn Fn(&mut LiveSets)| {
            [0; 3].map(|_| {
                call(sets);
                sets.ended
            })
        };
        let by_time = left(&mut filled(), &|sets| {
            sets.observe_held(at(1000), target(1), 5);
        });
        assert_eq!(by_time, [344, 88, 0]);
        let by_reset = left(&mut filled(), &|sets| {
            sets.observe_held(at(1), target(1), 0);
        });
        assert_eq!(by_reset, [344, 88, 0]);
        let mut of_removed = filled();
        of_removed.forget(WorkerId(1));
        // Requests that end later are not among those that are gone.
        of_removed.open(at(1), ReservationId(700), target(1), &prompt(&[9]));
        of_removed.end(at(1), ReservationId(700), target(1));
        let by_removal = left(&mut of_removed, &|sets| {
            sets.observe_held(at(1), target(1), 5);
        });
        assert_eq!(by_removal, [89, 1, 1]);
    }

    /// Labels of a prompt of its own.
    fn labels(id: u64) -> [u8; 8] {
        (id + 1000).to_le_bytes()
    }
}
