//! Repair after lost, repeated and reordered messages.

use std::collections::VecDeque;

use contract_id::contract;
use proptest::prelude::*;
use routing::{LoadChange, LoadDigest, LoadPage, ReplyMode, ReservationId, Router, TargetLoad};

use super::{Replica, of_all, peer, repair, targets};
use crate::fleet::{TestRandom, TestRequest, at_ms, test_request, tokens};

const WORKERS: u32 = 3;

#[test]
#[contract("DY23", "F53")]
fn a_lost_end_is_seen_in_the_next_digest_and_its_load_is_gone_after_the_repair() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let ids = [1, 2].map(|topic| {
        let request = test_request(tokens(topic, 4));
        here.fleet.plan(at_ms(0), &request).reservation
    });
    super::sync(at_ms(1), &here, peer(1), &there);
    here.router().done(at_ms(2), ids[0]);
    here.take();
    let (changes, state) = here.take();
    assert!(changes.is_empty());
    assert_ne!(there.router().peer_load_digest(peer(1)), state.digest);
    assert_eq!(there.load(1).in_flight, 2);
    repair(at_ms(1_000), here.router(), peer(1), there.router(), 10);
    assert_eq!(there.router().peer_load_digest(peer(1)), state.digest);
    assert_eq!(of_all(there.load(1)), here.load(1));
}

/// The one order that leaves load behind: the end came first, and nothing later.
#[test]
fn an_end_that_overtakes_its_beginning_is_repaired_as_a_lost_one() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let request = test_request(tokens(1, 4));
    let id = here.fleet.plan(at_ms(0), &request).reservation;
    here.router().done(at_ms(1), id);
    let (mut changes, state) = here.take();
    changes.reverse();
    there
        .router()
        .apply_peer_changes(at_ms(2), peer(1), changes);
    assert_ne!(there.router().peer_load_digest(peer(1)), state.digest);
    repair(at_ms(3), here.router(), peer(1), there.router(), 10);
    assert_eq!(there.load(1), TargetLoad::default());
}

#[test]
fn a_page_leaves_alone_what_is_outside_its_range() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let ids: Vec<_> = (0..200)
        .map(|topic| {
            let request = test_request(tokens(topic, 1));
            here.fleet.plan(at_ms(0), &request).reservation
        })
        .collect();
    super::sync(at_ms(1), &here, peer(1), &there);
    for id in &ids {
        here.router().done(at_ms(2), *id);
    }
    let page = |after: usize, through: Option<usize>| LoadPage {
        after: ids[after],
        through: through.map(|position| ids[position]),
        loads: Vec::new(),
    };
    let apply = |page| {
        there.router().apply_peer_page(at_ms(3), peer(1), page);
        there.load(1).in_flight
    };
    assert_eq!(apply(page(9, Some(19))), 190);
    assert_eq!(apply(page(19, Some(9))), 190);
    assert_eq!(apply(page(19, Some(19))), 190);
    assert_eq!(apply(page(149, None)), 140);
    assert_eq!(apply(page(0, None)), 1);
}

/// A step of a test with two replicas.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    FirstToken,
    Close,
    /// The transport takes what is queued.
    Send,
    /// A message arrives.
    Deliver,
    Lose,
    Duplicate,
    /// A message is overtaken by the next one.
    Swap,
    Repair,
    Tick,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Open),
        2 => Just(Step::FirstToken),
        3 => Just(Step::Close),
        3 => Just(Step::Send),
        4 => Just(Step::Deliver),
        1 => Just(Step::Lose),
        1 => Just(Step::Duplicate),
        1 => Just(Step::Swap),
        1 => Just(Step::Repair),
        1 => Just(Step::Tick),
    ]
}

/// Messages from one replica to the other, in order.
type Channel = VecDeque<(Vec<LoadChange>, LoadDigest)>;

struct Pair {
    replicas: [Replica; 2],
    open: [Vec<ReservationId>; 2],
    channels: [Channel; 2],
    random: TestRandom,
    now: u64,
}

impl Pair {
    fn new(seed: u64) -> Self {
        Self {
            // A small feed overflows now and then.
            replicas: [1, 2]
                .map(|_| Replica::new(WORKERS, routing::RoutingSettings::default(), 12)),
            open: Default::default(),
            channels: Default::default(),
            random: TestRandom(seed),
            now: 0,
        }
    }

    fn router(&self, side: usize) -> &Router {
        self.replicas[side].router()
    }

    fn apply(&mut self, side: usize, step: Step) {
        self.now += 7;
        let now = at_ms(self.now);
        match step {
            Step::Open => {
                let topic = u32::try_from(self.random.below(4)).expect("small");
                let blocks = 1 + u32::try_from(self.random.below(9)).expect("small");
                let request = TestRequest {
                    random: self.random.roll(),
                    answer: [ReplyMode::Streamed, ReplyMode::Whole, ReplyMode::Elsewhere]
                        [self.random.below(3)],
                    ..test_request(tokens(topic, blocks))
                };
                let plan = self.replicas[side].fleet.plan(now, &request);
                self.open[side].push(plan.reservation);
            }
            Step::FirstToken | Step::Close if self.open[side].is_empty() => {}
            Step::FirstToken => {
                let id = self.open[side][self.random.below(self.open[side].len())];
                self.router(side).first_token(now, id);
            }
            Step::Close => {
                let position = self.random.below(self.open[side].len());
                let id = self.open[side].swap_remove(position);
                self.router(side).done(now, id);
            }
            Step::Send => {
                let (changes, state) = self.replicas[side].take();
                self.channels[side].push_back((changes, state.digest));
            }
            Step::Deliver => {
                if let Some((changes, _)) = self.channels[side].pop_front() {
                    self.router(1 - side)
                        .apply_peer_changes(now, peer(side), changes);
                }
            }
            Step::Lose => {
                self.channels[side].pop_front();
            }
            Step::Duplicate => {
                if let Some(message) = self.channels[side].front().cloned() {
                    self.channels[side].push_back(message);
                }
            }
            Step::Swap => {
                if self.channels[side].len() > 1 {
                    self.channels[side].swap(0, 1);
                }
            }
            Step::Repair => self.repair(side),
            Step::Tick => {
                self.router(side).tick(now);
            }
        }
    }

    /// Empties the channel, then repairs through it, with changes of both replicas between pages.
    fn repair(&mut self, side: usize) {
        self.channels[side].clear();
        let page_size = 1 + self.random.below(5);
        let (mut changes, mut after) = (Vec::new(), Some(ReservationId::default()));
        while let Some(start) = after {
            let now = at_ms(self.now);
            let (page, state) =
                self.router(side)
                    .take_load_page(now, start, page_size, &mut changes);
            after = page.through;
            let other = self.router(1 - side);
            other.apply_peer_changes(now, peer(side), std::mem::take(&mut changes));
            other.apply_peer_page(now, peer(side), page);
            if after.is_none() && !state.lost {
                assert_eq!(other.peer_load_digest(peer(side)), state.digest);
            }
            if self.random.below(3) == 0 {
                self.apply(side, Step::Close);
                self.apply(side, Step::Open);
            }
        }
    }

    /// Both have the sum of both.
    fn assert_agreement(&self) {
        for target in targets(WORKERS) {
            let [ours, theirs] = [0, 1].map(|side| self.router(side).load(target));
            assert_eq!(of_all(ours), of_all(theirs), "{target}");
            assert_eq!(
                ours.peer_in_flight + theirs.peer_in_flight,
                ours.in_flight,
                "{target}"
            );
        }
    }

    fn repair_both(&mut self) {
        for side in [0, 1] {
            self.channels[side].clear();
            let (from, to) = (self.router(side), self.router(1 - side));
            let digest = repair(at_ms(self.now), from, peer(side), to, 4);
            assert_eq!(to.peer_load_digest(peer(side)), digest);
        }
        // The estimated end of a prefill comes to both.
        for side in [0, 1] {
            self.router(side).tick(at_ms(self.now + 60_000));
        }
    }
}

proptest! {
    #[test]
    #[contract("DY23", "F53")]
    fn whatever_is_lost_repeated_or_reordered_a_repair_makes_both_replicas_agree(
        seed in any::<u64>(),
        steps in prop::collection::vec((0usize..2, any_step()), 1..120),
    ) {
        let mut pair = Pair::new(seed);
        for (side, step) in steps {
            pair.apply(side, step);
        }
        pair.repair_both();
        pair.assert_agreement();
        for side in [0, 1] {
            while !pair.open[side].is_empty() {
                pair.apply(side, Step::Close);
            }
        }
        pair.repair_both();
        for side in [0, 1] {
            for target in targets(WORKERS) {
                prop_assert_eq!(pair.router(side).load(target), TargetLoad::default());
            }
        }
    }

    /// Without losses no repair is needed.
    #[test]
    fn messages_in_order_keep_the_digests_equal(
        seed in any::<u64>(),
        steps in prop::collection::vec((0usize..2, 0usize..3), 1..100),
    ) {
        let mut pair = Pair::new(seed);
        for (side, step) in steps {
            pair.apply(side, [Step::Open, Step::FirstToken, Step::Close][step]);
            let (changes, state) = pair.replicas[side].take();
            let other = pair.router(1 - side);
            other.apply_peer_changes(at_ms(pair.now), peer(side), changes);
            prop_assert_eq!(other.peer_load_digest(peer(side)), state.digest);
        }
    }
}
