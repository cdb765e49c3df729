//! Policies that count: requests, turns, milliseconds and matched tokens.

use std::time::Duration;

use kv_blocks::{Moment, Tier, WorkerId};
use proptest::prelude::*;
use routing::{CacheAwareSettings, CostUnit, Overrides, Pin, Policy, ReplyMode, RoutingSettings};

use crate::fleet::{TestFleet, TestRandom, TestRequest, at_ms, target, test_request, tokens};

const NOW: Moment = Moment::START;

fn pinned(worker: u32) -> TestRequest {
    TestRequest {
        pin: Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        }),
        ..test_request(Vec::new())
    }
}

/// Puts `count` requests in flight on `worker`.
fn busy(fleet: &TestFleet, worker: u32, count: u32) {
    for _ in 0..count {
        fleet.plan(NOW, &pinned(worker));
    }
}

#[test]
fn five_hundred_equal_prompts_spread_under_power_of_two() {
    let fleet = TestFleet::with(4, Policy::PowerOfTwo);
    let counts = fleet.burst(500, &test_request(tokens(1, 40)));
    assert!(counts.iter().all(|count| *count <= 200), "{counts:?}");
}

#[test]
fn power_of_two_picks_the_less_loaded_of_two_drawn_targets() {
    let fleet = TestFleet::with(4, Policy::PowerOfTwo);
    for (worker, count) in [(1, 4), (2, 3), (3, 2), (4, 1)] {
        busy(&fleet, worker, count);
    }
    let mut dice = TestRandom(1);
    let mut counts = [0u32; 5];
    for random in (0..6000).map(|_| dice.roll()) {
        let decision = fleet
            .preview(
                NOW,
                &TestRequest {
                    random,
                    ..test_request(Vec::new())
                },
            )
            .expect("all are free");
        counts[decision.winner.target.worker.0 as usize] += 1;
        let in_flight = |target| fleet.router.load(target).in_flight;
        assert!(
            in_flight(decision.winner.target)
                < in_flight(decision.runner_up.expect("two were drawn").target)
        );
    }
    // Six pairs: the least loaded is in three, the next in two more, the most loaded wins none.
    assert_eq!(counts[1], 0);
    for (worker, expected) in [(2, 1000u32), (3, 2000), (4, 3000)] {
        assert!(counts[worker].abs_diff(expected) < 200, "{counts:?}");
    }
}

#[test]
fn power_of_two_uses_every_idle_target() {
    let fleet = TestFleet::with(4, Policy::PowerOfTwo);
    let mut dice = TestRandom(2);
    let mut counts = [0u32; 5];
    for random in (0..4000).map(|_| dice.roll()) {
        counts[fleet
            .preview(
                NOW,
                &TestRequest {
                    random,
                    ..test_request(Vec::new())
                },
            )
            .expect("free")
            .winner
            .target
            .worker
            .0 as usize] += 1;
    }
    assert!(
        counts[1..].iter().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
}

fn weighted(weights: &[f64]) -> TestFleet {
    let mut fleet = TestFleet::with(
        u32::try_from(weights.len()).expect("few"),
        Policy::WeightedRoundRobin,
    );
    for (candidate, weight) in fleet.candidates.iter_mut().zip(weights) {
        candidate.weight = *weight;
    }
    fleet
}

fn turns(fleet: &TestFleet, count: usize) -> Vec<u32> {
    (0..count)
        .map(|_| fleet.goes_to(NOW, &test_request(Vec::new())))
        .collect()
}

#[test]
fn weighted_round_robin_spreads_the_turns_of_a_heavy_target() {
    assert_eq!(
        turns(&weighted(&[5.0, 1.0, 1.0]), 14),
        [1, 1, 2, 1, 3, 1, 1, 1, 1, 2, 1, 3, 1, 1]
    );
    assert_eq!(turns(&weighted(&[1.0; 3]), 6), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn weighted_round_robin_gives_a_returning_target_no_extra_turns() {
    let mut fleet = weighted(&[2.0, 1.0, 1.0]);
    turns(&fleet, 4);
    let away = fleet.candidates.remove(2);
    assert_eq!(
        turns(&fleet, 300)
            .iter()
            .filter(|worker| **worker == 1)
            .count(),
        200
    );
    fleet.candidates.push(away);
    let next = turns(&fleet, 8);
    assert_eq!(
        [1, 2, 3].map(|worker| next.iter().filter(|turn| **turn == worker).count()),
        [4, 2, 2]
    );
}

#[test]
fn weighted_round_robin_keeps_turns_per_model_and_counts_no_pinned_request() {
    let mut fleet = weighted(&[1.0, 1.0]);
    assert_eq!(turns(&fleet, 1), [1]);
    busy(&fleet, 2, 3);
    fleet
        .candidates
        .iter_mut()
        .for_each(|candidate| candidate.namespace.model = "other".into());
    assert_eq!(turns(&fleet, 1), [1]);
    fleet
        .candidates
        .iter_mut()
        .for_each(|candidate| candidate.namespace.model = "m".into());
    assert_eq!(turns(&fleet, 1), [2]);
}

#[test]
fn weighted_round_robin_forgets_a_removed_worker() {
    let fleet = weighted(&[3.0, 1.0]);
    turns(&fleet, 2);
    fleet.router.forget(WorkerId(1));
    fleet.router.forget(WorkerId(2));
    assert_eq!(turns(&fleet, 4), turns(&weighted(&[3.0, 1.0]), 4));
}

proptest! {
    #[test]
    fn after_every_turn_each_target_has_its_share_within_one_turn_per_target(
        weights in prop::collection::vec(1..9u32, 1..6),
        count in 1..100usize,
    ) {
        let fleet = weighted(&weights.iter().copied().map(f64::from).collect::<Vec<_>>());
        let turns = turns(&fleet, count);
        let all: u32 = weights.iter().sum();
        for (i, weight) in weights.iter().enumerate() {
            let had = turns.iter().filter(|worker| **worker as usize == i + 1).count() as f64;
            let due = count as f64 * f64::from(*weight) / f64::from(all);
            prop_assert!((had - due).abs() < weights.len() as f64, "{weights:?}: worker {} had {had} of {due}", i + 1);
        }
    }
}

/// A streaming request to `worker` whose first token takes `ms`.
fn answers(fleet: &TestFleet, worker: u32, at: u64, ms: u64) {
    let plan = fleet.plan(at_ms(at), &pinned(worker));
    fleet.router.first_token(at_ms(at + ms), plan.reservation);
    fleet.router.done(at_ms(at + ms), plan.reservation);
}

#[test]
fn least_latency_picks_the_worker_with_the_lowest_ttft() {
    let fleet = TestFleet::with(3, Policy::LeastLatency);
    for (worker, ms) in [(1, 300), (2, 80), (3, 120)] {
        answers(&fleet, worker, 0, ms);
    }
    let decision = fleet
        .preview(at_ms(1000), &test_request(Vec::new()))
        .expect("all are free");
    assert_eq!(
        (
            decision.winner.target,
            decision.runner_up.map(|other| other.target)
        ),
        (target(2), Some(target(3)))
    );
    assert_eq!(decision.cost_unit, CostUnit::Ms);
    let costs: Vec<f64> = decision.candidates.iter().map(|row| row.cost).collect();
    assert!(
        costs
            .iter()
            .zip([80.0, 120.0, 300.0])
            .all(|(cost, ms)| (cost - ms).abs() < 1e-6),
        "{costs:?}"
    );
    // It slows down, and the next worker gets the requests.
    for _ in 0..5 {
        answers(&fleet, 2, 2000, 900);
    }
    assert_eq!(fleet.goes_to(at_ms(3000), &test_request(Vec::new())), 3);
}

#[test]
fn least_latency_includes_the_queueing_time() {
    let fleet = TestFleet::with(2, Policy::LeastLatency);
    answers(&fleet, 1, 0, 100);
    answers(&fleet, 2, 0, 150);
    // Two requests at once on the first worker: the learned rate excludes the wait of the second.
    let both = [(); 2].map(|()| fleet.plan(at_ms(200), &pinned(1)).reservation);
    fleet.router.first_token(at_ms(300), both[0]);
    fleet.router.first_token(at_ms(600), both[1]);
    assert_eq!(fleet.goes_to(at_ms(700), &test_request(Vec::new())), 2);
}

#[test]
fn least_latency_tries_an_unknown_worker_first_with_one_request_at_a_time() {
    let fleet = TestFleet::with(3, Policy::LeastLatency);
    answers(&fleet, 1, 0, 50);
    answers(&fleet, 2, 0, 90);
    assert_eq!(fleet.goes_to(at_ms(100), &test_request(Vec::new())), 3);
    // Until it has answered, the known workers get all other requests.
    for _ in 0..50 {
        assert_eq!(fleet.goes_to(at_ms(100), &test_request(Vec::new())), 1);
    }
}

#[test]
fn least_latency_forgets_a_worker_after_a_minute() {
    let fleet = TestFleet::with(2, Policy::LeastLatency);
    answers(&fleet, 1, 0, 50);
    answers(&fleet, 2, 0, 5_000);
    answers(&fleet, 1, 40_000, 50);
    assert_eq!(
        fleet
            .preview(at_ms(64_000), &test_request(Vec::new()))
            .expect("free")
            .winner
            .target,
        target(1)
    );
    assert_eq!(
        fleet
            .preview(at_ms(65_000), &test_request(Vec::new()))
            .expect("free")
            .winner
            .target,
        target(2)
    );
    fleet.router.forget(WorkerId(1));
    let decision = fleet
        .preview(at_ms(64_000), &test_request(Vec::new()))
        .expect("free");
    assert_eq!(
        decision.winner.target,
        target(1),
        "a forgotten worker is unknown again"
    );
}

#[test]
fn without_any_first_token_least_latency_is_least_loaded() {
    let fleet = TestFleet::with(4, Policy::LeastLatency);
    assert_eq!(fleet.burst(500, &test_request(tokens(1, 40))), [125; 4]);
    let whole = TestFleet::with(2, Policy::LeastLatency);
    for _ in 0..10 {
        let plan = whole.plan(
            NOW,
            &TestRequest {
                answer: ReplyMode::Whole,
                ..test_request(Vec::new())
            },
        );
        whole
            .router
            .first_token(NOW + Duration::from_millis(10), plan.reservation);
    }
    assert_eq!(
        whole.router.load(target(1)).in_flight,
        5,
        "a complete reply shows none"
    );
}

/// Four workers; the third holds `blocks` of the ten blocks of topic 1, the second one block less.
fn caching(blocks: u32, settings: CacheAwareSettings) -> TestFleet {
    let policy = Policy::CacheAware;
    let fleet = TestFleet::new(
        4,
        RoutingSettings {
            policy,
            cache_aware: settings,
            ..RoutingSettings::default()
        },
    );
    fleet.stored(3, &tokens(1, blocks), Tier::Device);
    fleet.stored(2, &tokens(1, blocks - 1), Tier::Host);
    fleet
}

#[test]
fn cache_aware_follows_a_match_of_more_than_three_tenths_of_the_prompt() {
    let fleet = caching(4, CacheAwareSettings::default());
    busy(&fleet, 3, 20);
    let decision = fleet
        .preview(NOW, &test_request(tokens(1, 10)))
        .expect("all are free");
    assert_eq!(
        (
            decision.winner.target,
            decision.runner_up.map(|other| other.target)
        ),
        (target(3), Some(target(2)))
    );
    assert!((decision.candidates[0].cost - 0.6).abs() < 1e-9);
    // Exactly three tenths are not more than three tenths.
    let fleet = caching(3, CacheAwareSettings::default());
    for worker in [2, 3] {
        busy(&fleet, worker, 2);
    }
    busy(&fleet, 1, 1);
    assert_eq!(fleet.goes_to(NOW, &test_request(tokens(1, 10))), 4);
    let lower = caching(
        3,
        CacheAwareSettings {
            match_threshold: 0.29,
            ..CacheAwareSettings::default()
        },
    );
    busy(&lower, 3, 20);
    assert_eq!(lower.goes_to(NOW, &test_request(tokens(1, 10))), 3);
}

#[test]
fn cache_aware_settles_equal_matches_by_load() {
    let fleet = caching(5, CacheAwareSettings::default());
    fleet.stored(4, &tokens(1, 5), Tier::Device);
    busy(&fleet, 3, 1);
    assert_eq!(fleet.goes_to(NOW, &test_request(tokens(1, 10))), 4);
}

#[test]
fn cache_aware_balances_load_that_is_uneven_in_difference_and_ratio() {
    let winner = |settings, loads: [u32; 4]| {
        let fleet = caching(9, settings);
        for (worker, count) in (1..).zip(loads) {
            busy(&fleet, worker, count);
        }
        let decision = fleet
            .preview(NOW, &test_request(tokens(1, 10)))
            .expect("all are free");
        (
            decision.winner.target.worker.0,
            decision.candidates[0].terms.get("uneven"),
        )
    };
    let usual = CacheAwareSettings::default();
    assert_eq!(
        winner(usual, [1, 0, 64, 1]),
        (3, Some(0.0)),
        "64 more are not more than 64"
    );
    assert_eq!(winner(usual, [1, 0, 65, 1]), (2, Some(1.0)));
    assert_eq!(
        winner(usual, [140, 130, 195, 140]),
        (3, Some(0.0)),
        "195 are not more than one and a half times 130"
    );
    assert_eq!(winner(usual, [140, 130, 196, 140]), (2, Some(1.0)));
    let strict = CacheAwareSettings {
        balance_difference: 3,
        balance_ratio: 1.0,
        ..usual
    };
    assert_eq!(winner(strict, [1, 2, 5, 1]).1, Some(1.0));
}

#[test]
fn cache_aware_without_caches_balances_load() {
    let fleet = caching(9, CacheAwareSettings::default());
    busy(&fleet, 3, 1);
    let blind = Overrides {
        overlap_weight: Some(0.0),
        ..Overrides::default()
    };
    assert_ne!(
        fleet.goes_to(
            NOW,
            &TestRequest {
                overrides: blind,
                ..test_request(tokens(1, 10))
            }
        ),
        3
    );
    let cold = TestFleet::with(4, Policy::CacheAware);
    let counts = (0..200).fold([0; 5], |mut counts, topic| {
        counts[cold.goes_to(NOW, &test_request(tokens(topic, 20))) as usize] += 1;
        counts
    });
    assert_eq!(counts, [0, 50, 50, 50, 50]);
}
