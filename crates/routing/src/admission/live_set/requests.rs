//! The life of a request: it arrives, is sent, and ends.

use kv_blocks::{Moment, Target};

use super::{DispatchFacts, EndedKey, LiveSequence, LiveSets, forgetting::MOST_DROPPED};
use crate::{ReservationId, admission::Footprint};

/// Most spans of a prompt that are compared with the ends of earlier ones: 260,000 tokens.
const MOST_COMPARED: usize = 1024;

impl LiveSets {
    /// Records that a request of this router was received, before it is placed or waits.
    pub(crate) fn arrived(&mut self, now: Moment, footprint: &Footprint) {
        let fingerprint = footprint.spans.fingerprint;
        let mut ends = footprint.ends().take(MOST_COMPARED);
        let until = ends.find_map(|end| self.tails.take((fingerprint, end)));
        if until.is_some_and(|until| until >= now) {
            self.keep.returned();
        }
    }

    /// Adds the blocks of a request that is sent to `target`. An ended request that it continues
    /// there needs no entry any more.
    pub(crate) fn open(
        &mut self,
        now: Moment,
        id: ReservationId,
        target: Target,
        footprint: &Footprint,
    ) {
        if !self.enabled {
            return;
        }
        self.expire(now, target);
        let (end, added) = self.tree.add(target, &footprint.spans);
        let live = self.targets.entry(target).or_default();
        live.blocks += added * footprint.span + footprint.rest;
        live.open += 1;
        live.forgotten = false;
        let tail = footprint.ends().next();
        self.open.insert(
            id,
            LiveSequence {
                end,
                tail: tail.map(|tail| (footprint.spans.fingerprint, tail)),
                spans: footprint.whole_spans(),
                span: footprint.span,
                rest: footprint.rest,
                rent_s: None,
                own: false,
                discarded: false,
            },
        );
        for node in self.tree.path(&footprint.spans) {
            self.drop_ended_at(node, target);
        }
        self.trim(target);
    }

    /// Records what the decision of this router knew of an open request.
    pub(crate) fn dispatched(&mut self, id: ReservationId, facts: DispatchFacts) {
        let Some(sequence) = self.open.get_mut(&id) else {
            return;
        };
        let Some(live) = self.targets.get_mut(&facts.target) else {
            return;
        };
        live.capacity.report(facts.reported_capacity);
        sequence.own = true;
        let blocks = sequence.spans as u64 * sequence.span + sequence.rest;
        let share = live.capacity.blocks().zip((blocks > 0).then_some(blocks));
        sequence.rent_s =
            share.map(|(capacity, blocks)| facts.prefill_s * capacity as f64 / blocks as f64);
        self.trim(facts.target);
    }

    /// Records that the engine did not receive the prompt of an open request.
    pub(crate) fn discard(&mut self, id: ReservationId) {
        if let Some(sequence) = self.open.get_mut(&id) {
            sequence.discarded = true;
        }
    }

    /// Records that a request ended: its blocks count for the keep time.
    pub(crate) fn end(&mut self, now: Moment, id: ReservationId, target: Target) {
        let Some(sequence) = self.open.remove(&id) else {
            return;
        };
        self.expire(now, target);
        if let Some(live) = self.targets.get_mut(&target) {
            live.open = live.open.saturating_sub(1);
        }
        let has_blocks = sequence.spans > 0 || sequence.rest > 0;
        if sequence.discarded || !has_blocks {
            self.release(target, &sequence);
            return;
        }
        if sequence.own && sequence.tail.is_some() {
            self.keep.ended(sequence.rent_s);
        }
        let expires = now + self.keep.time();
        if let Some(tail) = sequence.tail {
            self.tails.insert(tail, expires);
        }
        if let Some(end) = sequence.end {
            self.drop_ended_at(end, target);
        }
        for _ in 0..MOST_DROPPED {
            if self.has_space(sequence.spans) || !self.drop_oldest(target) {
                break;
            }
        }
        if !self.has_space(sequence.spans) {
            self.release(target, &sequence);
            return;
        }
        let key = EndedKey {
            target,
            expires,
            id,
        };
        if let Some(live) = self.targets.get_mut(&target) {
            live.ended.insert((expires, id), sequence);
            self.ended += 1;
            self.spans += sequence.spans;
            if let Some(end) = sequence.end {
                self.ends.entry(end).or_default().push(key);
            }
        }
        self.trim(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::live_set::fixture::{at, live_sets, prompt, run, target};

    #[test]
    fn blocks_count_while_their_request_runs_and_for_the_keep_time_after() {
        let mut sets = live_sets();
        sets.open(at(0), ReservationId(1), target(1), &prompt(&[1, 2, 3]));
        assert_eq!(sets.blocks(at(1000), target(1)), 3);
        assert_eq!(sets.known(&prompt(&[1, 2, 9])).of(target(1)), 2);
        sets.end(at(1000), ReservationId(1), target(1));
        assert_eq!(sets.blocks(at(1089), target(1)), 3);
        assert_eq!(sets.blocks(at(1090), target(1)), 0);
        assert_eq!(sets.known(&prompt(&[1, 2, 3])).of(target(1)), 0);
    }

    #[test]
    fn shared_blocks_count_once_and_the_next_turn_replaces_the_one_before() {
        let mut sets = live_sets();
        run(&mut sets, 1, (0, 1), 1, &[1, 2, 3]);
        run(&mut sets, 2, (2, 3), 1, &[1, 2, 4]);
        assert_eq!(sets.blocks(at(4), target(1)), 4);
        run(&mut sets, 3, (5, 6), 1, &[1, 2, 3, 5, 6]);
        assert_eq!((sets.blocks(at(7), target(1)), sets.ended), (6, 2));
        // Elsewhere it is another copy, and this one still counts.
        run(&mut sets, 4, (8, 9), 2, &[1, 2, 3, 5, 6, 7]);
        let live = [1, 2].map(|worker| sets.blocks(at(9), target(worker)));
        assert_eq!((live, sets.ended), ([6, 6], 3));
    }

    #[test]
    fn a_request_that_the_engine_did_not_receive_leaves_nothing() {
        let mut sets = live_sets();
        sets.open(at(0), ReservationId(1), target(1), &prompt(&[1, 2]));
        sets.discard(ReservationId(1));
        sets.end(at(1), ReservationId(1), target(1));
        assert_eq!((sets.blocks(at(1), target(1)), sets.ended), (0, 0));
    }

    /// As with a prompt that is computed for another worker.
    #[test]
    fn a_request_without_blocks_takes_no_place() {
        let mut sets = live_sets();
        sets.open(at(0), ReservationId(1), target(1), &Footprint::default());
        sets.end(at(1), ReservationId(1), target(1));
        assert_eq!((sets.ended, sets.ends.len()), (0, 0));
    }

    #[test]
    fn a_prompt_that_continues_an_evicted_one_has_returned_all_the_same() {
        let mut sets = live_sets();
        for session in 0..100u8 {
            let id = u64::from(session) * 2;
            run(&mut sets, id, (0, 1), 1, &[session, 1, 1, 1, 1, 1]);
        }
        assert_eq!(sets.share(), 0.0);
        for session in 0..100u8 {
            let id = u64::from(session) * 2 + 1;
            run(&mut sets, id, (2, 3), 1, &[session, 1, 1, 1, 1, 1, 2]);
        }
        assert!(sets.share() > 0.7, "{}", sets.share());
    }
}
