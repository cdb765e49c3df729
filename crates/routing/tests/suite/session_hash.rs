//! `rendezvous_hash` and `consistent_hash`: a session stays on its target.

use std::{collections::HashMap, sync::Arc};

use contract_id::contract;
use kv_blocks::Moment;
use routing::{Affinity, Policy, RoutingSection, RoutingSettings};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fleet::{
    TestFleet, TestRandom, TestRequest, in_session, target, test_request, with_prefix,
};

const NOW: Moment = Moment::START;
const BOTH: [Policy; 2] = [Policy::RendezvousHash, Policy::ConsistentHash];

fn seeded(workers: u32, policy: Policy, seed: u64) -> TestFleet {
    let section = RoutingSection {
        hash_seed_of_rings: seed,
        ..RoutingSection::default()
    };
    TestFleet::new(
        workers,
        RoutingSettings {
            policy,
            section,
            ..RoutingSettings::default()
        },
    )
}

#[test]
#[contract("V24")]
fn rendezvous_hash_picks_the_healthy_target_with_the_best_hash_for_the_session() {
    let mut fleet = TestFleet::with(6, Policy::RendezvousHash);
    let hash = |key: u64, name: &str| {
        xxh3_64_with_seed(
            &[&key.to_be_bytes()[..], name.as_bytes(), b"/0"].concat(),
            0,
        )
    };
    let mut dice = TestRandom(1);
    while !fleet.candidates.is_empty() {
        for key in (0..1000).map(|_| dice.roll()) {
            // With equal weights the highest score is the lowest hash.
            let best = fleet
                .candidates
                .iter()
                .map(|candidate| &candidate.name)
                .min_by_key(|name| hash(key, name));
            assert_eq!(Some(&fleet.would_go_to(&in_session(key))), best);
        }
        let leaving = dice.below(fleet.candidates.len());
        fleet.candidates.remove(leaving);
    }
}

#[test]
#[contract("V24", "V27")]
fn owners_are_the_same_in_every_release() {
    // Owners of the sessions 0 to 11 among w1 to w4 at seed 7, computed by another program with
    // another implementation of XXH3.
    for (policy, owners) in [
        (Policy::RendezvousHash, [3, 2, 2, 1, 2, 1, 4, 3, 1, 4, 1, 2]),
        (Policy::ConsistentHash, [3, 1, 1, 4, 1, 3, 1, 3, 4, 4, 3, 2]),
    ] {
        let fleet = seeded(4, policy, 7);
        for (key, owner) in owners.into_iter().enumerate() {
            assert_eq!(
                *fleet.would_go_to(&in_session(key as u64)),
                *format!("w{owner}"),
                "{policy}, session {key}"
            );
        }
    }
}

#[test]
#[contract("V24")]
fn rendezvous_hash_shares_sessions_by_weight_and_moves_few_when_a_weight_grows() {
    let mut fleet = TestFleet::with(3, Policy::RendezvousHash);
    for (candidate, weight) in fleet.candidates.iter_mut().zip([1.0, 6.0, 3.0]) {
        candidate.weight = weight;
    }
    let mut dice = TestRandom(2);
    let sessions: Vec<TestRequest> = (0..10_000).map(|_| in_session(dice.roll())).collect();
    let owners = |fleet: &TestFleet| {
        sessions
            .iter()
            .map(|session| fleet.would_go_to(session))
            .collect::<Vec<_>>()
    };
    let before = owners(&fleet);
    for (name, expected) in [("w1", 1000usize), ("w2", 6000), ("w3", 3000)] {
        let count = before.iter().filter(|owner| ***owner == *name).count();
        assert!(count.abs_diff(expected) < 200, "{name}: {count}");
    }
    fleet.candidates[0].weight = 2.0;
    assert!(
        before
            .iter()
            .zip(owners(&fleet))
            .all(|(was, is)| *was == is || *is == *"w1")
    );
}

#[test]
#[contract("V24", "V27")]
fn a_session_takes_precedence_over_a_prefix_and_without_either_a_target_is_drawn() {
    for policy in BOTH {
        let fleet = TestFleet::with(5, policy);
        let mut dice = TestRandom(3);
        for _ in 0..200 {
            let (session, prefix) = (dice.roll(), dice.roll());
            let both = Affinity {
                session_key: Some(session),
                ..with_prefix(prefix).affinity
            };
            let owner = |affinity| {
                fleet.would_go_to(&TestRequest {
                    affinity,
                    ..test_request(Vec::new())
                })
            };
            assert_eq!(owner(both), owner(in_session(session).affinity), "{policy}");
            // A prefix selects the same target as a session with that number.
            assert_eq!(
                owner(with_prefix(prefix).affinity),
                owner(in_session(prefix).affinity),
                "{policy}"
            );
        }
        let counts = fleet.burst(5000, &test_request(Vec::new()));
        assert!(
            counts.iter().all(|count| (500..1600).contains(count)),
            "{policy}: {counts:?}"
        );
    }
}

#[test]
#[contract("V24", "V27")]
fn a_session_stays_regardless_of_load_candidate_order_and_router() {
    for policy in BOTH {
        let (mut one, mut other) = (TestFleet::with(4, policy), TestFleet::with(4, policy));
        let mut dice = TestRandom(4);
        dice.shuffle(&mut other.candidates);
        for (number, candidate) in other.candidates.iter_mut().enumerate() {
            candidate.target = target(100 + u32::try_from(number).expect("few workers"));
        }
        for _ in 0..300 {
            let session = in_session(dice.roll());
            let first = one.would_go_to(&session);
            for _ in 0..3 {
                // These requests stay in flight.
                dice.shuffle(&mut one.candidates);
                assert_eq!(
                    one.plan(NOW, &session).decision.winner.name,
                    first,
                    "{policy}"
                );
            }
            assert_eq!(other.would_go_to(&session), first, "{policy}");
        }
    }
}

#[test]
#[contract("V26", "V27")]
fn of_300_sessions_on_three_workers_only_those_of_the_removed_one_move() {
    for policy in BOTH {
        for leaving in 0..3 {
            let mut fleet = TestFleet::with(3, policy);
            let owners = |fleet: &TestFleet| {
                (0..300)
                    .map(|key| fleet.would_go_to(&in_session(key)))
                    .collect::<Vec<_>>()
            };
            let before = owners(&fleet);
            let left = fleet.candidates.remove(leaving).name;
            let after = owners(&fleet);
            let moved = before
                .iter()
                .zip(&after)
                .filter(|(was, is)| was != is)
                .count();
            assert_eq!(
                moved,
                before.iter().filter(|owner| **owner == left).count(),
                "{policy}"
            );
            assert!(
                before
                    .iter()
                    .zip(&after)
                    .all(|(was, is)| was == is || *was == left),
                "{policy}"
            );
            assert!(moved > 0 && !after.contains(&left), "{policy}");
        }
    }
}

/// Coefficient of variation of 512 sessions over three workers, as the root of the mean square over
/// `fleets` fleets with different names: one fleet is one random sample.
fn dispersion(policy: Policy, fleets: u64) -> f64 {
    let square = |number: u64| {
        let mut fleet = TestFleet::with(3, policy);
        for candidate in &mut fleet.candidates {
            candidate.name = format!("{}.fleet-{number}", candidate.name).into();
        }
        let mut counts: HashMap<Arc<str>, f64> = HashMap::new();
        let mut dice = TestRandom(number);
        for _ in 0..512 {
            *counts
                .entry(fleet.would_go_to(&in_session(dice.roll())))
                .or_default() += 1.0;
        }
        let mean = 512.0 / 3.0;
        let counted: f64 = counts.values().map(|count| (count - mean).powi(2)).sum();
        let absent = (3.0 - counts.len() as f64) * mean.powi(2);
        (counted + absent) / 3.0 / mean.powi(2)
    };
    ((0..fleets).map(square).sum::<f64>() / fleets as f64).sqrt()
}

#[test]
#[contract("V26", "V48")]
fn rendezvous_hash_is_about_twice_as_even_as_a_ring_of_a_hundred_points() {
    let (rendezvous, ring) = (
        dispersion(Policy::RendezvousHash, 150),
        dispersion(Policy::ConsistentHash, 150),
    );
    assert!(rendezvous <= 0.6 * ring, "{rendezvous} against {ring}");
    // The value of a fair draw: the root of (1 - 1/3) * 3 / 512.
    assert!((rendezvous - 0.0625).abs() < 0.01, "{rendezvous}");
}

#[test]
#[contract("V27")]
fn consistent_hash_is_a_ring_of_a_hundred_points_that_ignores_load() {
    let fleet = TestFleet::with(4, Policy::ConsistentHash);
    let mut points: Vec<(u64, u32)> = (1..=4u32)
        .flat_map(|worker| {
            (0..100).map(move |i| {
                (
                    xxh3_64_with_seed(format!("w{worker}/0#{i}").as_bytes(), 0),
                    worker,
                )
            })
        })
        .collect();
    points.sort_unstable();
    let mut dice = TestRandom(5);
    for key in (0..2000).map(|_| dice.roll()) {
        let position = xxh3_64_with_seed(&key.to_be_bytes(), 0);
        let owner = points[points.partition_point(|(point, _)| *point < position) % points.len()].1;
        assert_eq!(fleet.goes_to(NOW, &in_session(key)), owner);
    }
    let counts = fleet.burst(500, &in_session(1));
    assert_eq!(counts.iter().max(), Some(&500), "{counts:?}");
}
