//! `prefix_hash`: equal prompt beginnings to one target, until it is full.

use std::collections::{BTreeMap, HashMap};

use contract_id::contract;
use kv_blocks::{DpRank, Moment, WorkerId};
use proptest::prelude::*;
use routing::{
    Method, Pin, Policy, PrefixRoutingSection, ReservationId, RingSettings, RoutingSection,
    RoutingSettings,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fleet::{TestFleet, TestRandom, TestRequest, target, test_request, tokens, with_prefix};

const NOW: Moment = Moment::START;

fn hashing() -> RoutingSettings {
    RoutingSettings {
        policy: Policy::PrefixHash,
        ..RoutingSettings::default()
    }
}

/// `prefix_hash` on this ring.
fn on_ring(ring: RingSettings) -> RoutingSettings {
    let usual = hashing();
    RoutingSettings {
        section: RoutingSection {
            hash_seed_of_rings: ring.seed,
            ..usual.section
        },
        prefix_routing: PrefixRoutingSection {
            virtual_nodes: ring.virtual_nodes,
            load_factor_epsilon: ring.load_factor_epsilon,
            ..usual.prefix_routing
        },
        ..usual
    }
}

/// The documented ring, computed worker by worker and point by point.
struct PlainRing(BTreeMap<u64, u32>);

impl PlainRing {
    fn of(workers: u32, settings: RingSettings) -> Self {
        let positions = |worker: u32| {
            (0..settings.virtual_nodes).map(move |i| {
                (
                    xxh3_64_with_seed(format!("w{worker}/0#{i}").as_bytes(), settings.seed),
                    worker,
                )
            })
        };
        Self((1..=workers).flat_map(positions).collect())
    }

    fn clockwise(&self, key: u64) -> impl Iterator<Item = u32> + '_ {
        self.0
            .range(key..)
            .chain(self.0.range(..key))
            .map(|(_, worker)| *worker)
    }
}

#[test]
#[contract("CK16")]
fn the_policy_is_selected_under_either_of_its_names() {
    for name in [
        "PrefixAwareHash",
        "prefix_aware_hash",
        "prefix-aware-hash",
        "prefix_hash",
        "PrefixHash",
    ] {
        assert_eq!(name.parse(), Ok(Policy::PrefixHash), "{name}");
    }
    assert_eq!(Policy::PrefixHash.as_str(), "prefix_hash");
}

#[test]
fn an_unknown_policy_is_rejected_with_all_known_names() {
    let text = "best"
        .parse::<Policy>()
        .expect_err("no such policy")
        .to_string();
    assert!(
        text.starts_with("policy \"best\" is unknown: expected one of round_robin, random, "),
        "{text}"
    );
    for policy in Policy::ALL {
        assert!(text.contains(policy.as_str()), "{policy} in {text}");
    }
    assert!(
        text.contains("dynamo_cost (or kv), prefix_hash (or prefix_aware_hash), rendezvous_hash"),
        "{text}"
    );
}

#[test]
#[contract("CK3", "CK4")]
fn a_target_has_150_points_and_a_quarter_above_its_even_share_unless_set_otherwise() {
    let settings = RoutingSettings::default().ring();
    assert_eq!(
        (
            settings.virtual_nodes,
            settings.load_factor_epsilon,
            settings.seed
        ),
        (150, 0.25, 0)
    );
    // One point more or less would move some of these keys.
    for settings in [
        settings,
        RingSettings {
            virtual_nodes: 7,
            seed: 3,
            ..settings
        },
    ] {
        let fleet = TestFleet::new(5, on_ring(settings));
        let ring = PlainRing::of(5, settings);
        let mut dice = TestRandom(1);
        for key in (0..5000)
            .map(|_| dice.roll())
            .chain([0, u64::MAX])
            .chain(ring.0.keys().copied().take(50))
        {
            let owner = ring.clockwise(key).next().expect("there are points");
            assert_eq!(
                *fleet.would_go_to(&with_prefix(key)),
                *format!("w{owner}"),
                "{key:#x}"
            );
        }
    }
}

/// First eight bytes of the SHA-256 of "prompt 0" to "prompt 7", and the owner among w1 to w4,
/// computed by another program with another implementation of XXH3.
const OWNERS: [(u64, u32); 8] = [
    (0x481d_04be_4cdb_b88b, 3),
    (0x7e5b_8ad5_6422_e58b, 1),
    (0x259a_648c_7737_7794, 3),
    (0xb52b_5538_27db_ea1d, 1),
    (0xbce2_065e_ca96_2f32, 2),
    (0x9405_6d93_5c04_d494, 2),
    (0x24a2_e03a_a060_e767, 3),
    (0x2f89_a202_04bf_86df, 3),
];

#[test]
#[contract("CK19")]
fn an_owner_is_the_same_in_every_release() {
    let fleet = TestFleet::new(4, hashing());
    for (key, owner) in OWNERS {
        assert_eq!(
            *fleet.would_go_to(&with_prefix(key)),
            *format!("w{owner}"),
            "{key:#x}"
        );
    }
}

#[test]
#[contract("CK19")]
fn a_key_has_one_owner_after_restarts_on_every_replica_and_in_any_order_of_candidates() {
    let mut dice = TestRandom(2);
    let mut routers: Vec<TestFleet> = (0..3).map(|_| TestFleet::new(8, hashing())).collect();
    for (replica, fleet) in routers.iter_mut().enumerate() {
        // Another replica, or this one after a restart, numbers workers in order of discovery.
        dice.shuffle(&mut fleet.candidates);
        for (number, candidate) in fleet.candidates.iter_mut().enumerate() {
            candidate.target = target(u32::try_from(replica * 100 + number).expect("few workers"));
        }
    }
    for _ in 0..2000 {
        let request = with_prefix(dice.roll());
        let owners: Vec<_> = routers
            .iter_mut()
            .map(|fleet| {
                dice.shuffle(&mut fleet.candidates);
                fleet.would_go_to(&request)
            })
            .collect();
        assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
    }
}

#[test]
#[contract("CK19")]
fn keys_follow_the_worker_name_when_numbers_are_swapped() {
    let mut fleet = TestFleet::new(4, hashing());
    let owners = |fleet: &TestFleet| OWNERS.map(|(key, _)| fleet.would_go_to(&with_prefix(key)));
    let before = owners(&fleet);
    for (candidate, number) in fleet.candidates.iter_mut().zip([3, 4, 1, 2]) {
        candidate.target = target(number);
    }
    assert_eq!(owners(&fleet), before);
}

#[test]
#[contract("CK20")]
fn removing_a_target_moves_only_its_own_keys() {
    let mut dice = TestRandom(3);
    let keys: Vec<TestRequest> = (0..10_000).map(|_| with_prefix(dice.roll())).collect();
    for (workers, leaving) in [(2, 1), (3, 2), (10, 7)] {
        let mut fleet = TestFleet::new(workers, hashing());
        let owners = |fleet: &TestFleet| {
            keys.iter()
                .map(|key| fleet.would_go_to(key))
                .collect::<Vec<_>>()
        };
        let before = owners(&fleet);
        let left = fleet.candidates.remove(leaving).name;
        let after = owners(&fleet);
        for (was, is) in before.iter().zip(&after) {
            assert!(
                *is != left && (was == is || *was == left),
                "{was} to {is} when {left} left"
            );
        }
        let mut alone = TestFleet::new(workers, hashing());
        alone.candidates.remove(leaving);
        assert_eq!(
            after,
            owners(&alone),
            "a router that never knew {left} agrees"
        );
        assert!(before.contains(&left));
    }
}

proptest! {
    #[test]
    #[contract("CK20")]
    fn owners_do_not_depend_on_earlier_targets(
        steps in prop::collection::vec((prop::collection::btree_set(0..12usize, 1..12), any::<u64>()), 1..12),
    ) {
        let mut fleet = TestFleet::new(12, hashing());
        let all = fleet.candidates.clone();
        let ring = PlainRing::of(12, RingSettings::default());
        for (present, key) in steps {
            fleet.candidates = present.iter().map(|i| all[*i].clone()).collect();
            let owner = ring.clockwise(key).find(|worker| present.contains(&(*worker as usize - 1))).expect("one is there");
            prop_assert_eq!(&*fleet.would_go_to(&with_prefix(key)), format!("w{owner}"));
        }
    }
}

#[test]
fn ranks_of_one_worker_own_separate_keys() {
    let mut fleet = TestFleet::new(2, hashing());
    fleet.candidates[1].name = "w1".into();
    fleet.candidates[1].target.rank = DpRank(1);
    let mut dice = TestRandom(4);
    let mut counts = HashMap::new();
    for _ in 0..1000 {
        let winner = fleet
            .preview(NOW, &with_prefix(dice.roll()))
            .expect("both are free")
            .winner
            .target;
        *counts.entry(winner.rank.0).or_insert(0) += 1;
    }
    assert!(counts[&0] > 300 && counts[&1] > 300, "{counts:?}");
}

/// A fleet, and a simple reference model of the policy.
struct ObservedFleet {
    fleet: TestFleet,
    ring: PlainRing,
    /// `1 + epsilon` as a fraction.
    load_factor: (u64, u64),
    in_flight: HashMap<u32, u64>,
    open: Vec<(u32, ReservationId)>,
}

impl ObservedFleet {
    fn cap(&self) -> u64 {
        let (above, below) = self.load_factor;
        let all: u64 = self.present().map(|worker| self.in_flight(worker)).sum();
        (above * (all + 1)).div_ceil(below * self.fleet.candidates.len() as u64)
    }

    fn present(&self) -> impl Iterator<Item = u32> + '_ {
        self.fleet
            .candidates
            .iter()
            .map(|candidate| candidate.target.worker.0)
    }

    fn in_flight(&self, worker: u32) -> u64 {
        self.in_flight.get(&worker).copied().unwrap_or(0)
    }

    fn send(&mut self, key: u64) {
        let cap = self.cap();
        let present: Vec<u32> = self.present().collect();
        let walk = || {
            self.ring
                .clockwise(key)
                .filter(|worker| present.contains(worker))
        };
        let owner = walk().next().expect("a target is present");
        let expected = walk()
            .find(|worker| self.in_flight(*worker) < cap)
            .expect("not all can be full");
        let plan = self.fleet.plan(NOW, &with_prefix(key));
        let taker = plan.decode.target.worker.0;
        assert_eq!(taker, expected, "cap {cap}, in flight {:?}", self.in_flight);
        assert_eq!(
            plan.decision.label,
            Some(if taker == owner {
                "prefix_hash"
            } else {
                "overflow"
            })
        );
        let terms = plan
            .decision
            .winning()
            .expect("the winner is recorded")
            .terms;
        assert_eq!(terms.get("cap"), Some(cap as f64));
        assert_eq!(
            terms.get("owner"),
            Some(f64::from(u8::from(taker == owner)))
        );
        *self.in_flight.entry(taker).or_insert(0) += 1;
        assert!(self.in_flight(taker) <= cap);
        self.open.push((taker, plan.reservation));
    }

    fn end(&mut self, which: usize) {
        let (worker, reservation) = self.open.swap_remove(which);
        *self
            .in_flight
            .get_mut(&worker)
            .expect("it is in flight there") -= 1;
        self.fleet.router.done(NOW, reservation);
    }
}

#[test]
#[contract("CK17", "CK18")]
fn in_a_hundred_thousand_random_steps_no_target_exceeds_the_cap() {
    for (seed, epsilon, load_factor) in [
        (5, 0.25, (125, 100)),
        (6, 0.1, (110, 100)),
        (7, 0.01, (101, 100)),
        (8, 10.0, (11, 1)),
    ] {
        let ring = RingSettings {
            load_factor_epsilon: epsilon,
            ..RingSettings::default()
        };
        let mut watched = ObservedFleet {
            fleet: TestFleet::new(7, on_ring(ring)),
            ring: PlainRing::of(7, ring),
            load_factor,
            in_flight: HashMap::new(),
            open: Vec::new(),
        };
        let mut away = Vec::new();
        let mut dice = TestRandom(seed);
        // Most requests have one of a few keys, and the load rises and falls.
        let hot: Vec<u64> = (0..5).map(|_| dice.roll()).collect();
        for step in 0..100_000 {
            let filling = if step / 500 % 2 == 0 { 60 } else { 40 };
            let key = if dice.below(4) == 0 {
                dice.roll()
            } else {
                hot[dice.below(hot.len())]
            };
            match dice.below(100) {
                0 if watched.fleet.candidates.len() > 1 => {
                    let leaving = dice.below(watched.fleet.candidates.len());
                    away.push(watched.fleet.candidates.swap_remove(leaving));
                }
                1 => watched.fleet.candidates.extend(away.pop()),
                turn if turn < filling || watched.open.is_empty() => watched.send(key),
                _ => {
                    let ending = dice.below(watched.open.len());
                    watched.end(ending);
                }
            }
        }
    }
}

#[test]
#[contract("CK17", "CK18")]
fn a_full_owner_passes_the_request_to_the_next_one_clockwise() {
    let fleet = TestFleet::new(4, hashing());
    let walk: Vec<u32> = PlainRing::of(4, RingSettings::default())
        .clockwise(77)
        .collect();
    let next = walk
        .iter()
        .copied()
        .find(|worker| *worker != walk[0])
        .expect("there are others");
    // Caps with 0, 1, 2 in flight on four: 1, 1, 1. The third goes to the next target after both.
    let plans: Vec<_> = (0..3).map(|_| fleet.plan(NOW, &with_prefix(77))).collect();
    let chosen = |i: usize| (plans[i].decode.target.worker.0, plans[i].decision.label);
    assert_eq!(chosen(0), (walk[0], Some("prefix_hash")));
    assert_eq!(chosen(1), (next, Some("overflow")));
    assert_eq!(chosen(2).1, Some("overflow"));
    // The owner is below its cap again, and gets its key back.
    fleet.router.done(NOW, plans[0].reservation);
    assert_eq!(fleet.goes_to(NOW, &with_prefix(77)), walk[0]);
}

#[test]
#[contract("CK17")]
fn five_hundred_equal_prompts_at_once_stay_within_a_quarter_above_the_even_share() {
    let fleet = TestFleet::new(4, hashing());
    let mut dice = TestRandom(9);
    for key in (0..20).map(|_| dice.roll()) {
        let fleet = TestFleet {
            candidates: fleet.candidates.clone(),
            ..TestFleet::new(4, hashing())
        };
        let counts = fleet.burst(500, &with_prefix(key));
        assert_eq!(counts.iter().max(), Some(&157), "{counts:?}");
    }
}

#[test]
#[contract("CK15")]
fn without_a_key_the_configured_policy_decides_and_the_label_shows_it() {
    let fleet = TestFleet::new(4, hashing());
    let decision = fleet.plan(NOW, &test_request(tokens(1, 4))).decision;
    assert_eq!(
        (decision.policy, decision.method),
        (Policy::PrefixHash, Method::Fallback)
    );
    assert_eq!(decision.label, Some("fallback"));
    assert_eq!(
        fleet.burst(399, &test_request(Vec::new())).iter().max(),
        Some(&100),
        "least_loaded, the first one counted"
    );

    // Turns advance as under the policy itself.
    let usual = hashing();
    let turns = TestFleet::new(
        3,
        RoutingSettings {
            section: RoutingSection {
                fallback: Policy::RoundRobin,
                ..usual.section
            },
            ..usual
        },
    );
    assert_eq!(
        (0..6)
            .map(|_| turns.goes_to(NOW, &test_request(Vec::new())))
            .collect::<Vec<_>>(),
        [1, 2, 3, 1, 2, 3]
    );
}

#[test]
fn a_request_pinned_or_placed_by_another_policy_has_no_label() {
    let fleet = TestFleet::new(3, hashing());
    for worker in 1..=3 {
        let pin = Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        });
        for request in [with_prefix(1), test_request(Vec::new())] {
            let decision = fleet.plan(NOW, &TestRequest { pin, ..request }).decision;
            assert_eq!(
                (decision.winner.target, decision.label),
                (target(worker), None)
            );
        }
    }
    let decision = fleet
        .plan(
            NOW,
            &TestRequest {
                policy: Some(Policy::LeastLoaded),
                ..with_prefix(1)
            },
        )
        .decision;
    assert_eq!(decision.label, None);
}
