//! Policy `dynamo_cost`: weighted blocks to compute plus active blocks.

use std::collections::HashMap;

use contract_id::contract;
use kv_blocks::{Moment, Tier, WorkerId};
use routing::{
    CostUnit, Decision, DynamoSettings, Overrides, Pin, Plan, Policy, ReservationId,
    RoutingSection, RoutingSettings, RunnerUp, ScoredCandidate,
};

use crate::fleet::{BLOCK, TestFleet, TestRequest, target, test_request, tokens};

const NOW: Moment = Moment::START;

fn on(worker: u32, prompt: Vec<u32>) -> TestRequest {
    TestRequest {
        pin: Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        }),
        ..test_request(prompt)
    }
}

/// A request in its prefill on `worker`.
fn queued(fleet: &TestFleet, worker: u32, topic: u32, blocks: u32) -> ReservationId {
    fleet
        .plan(NOW, &on(worker, tokens(topic, blocks)))
        .reservation
}

/// A request in its decode on `worker`.
fn generating(fleet: &TestFleet, worker: u32, topic: u32, blocks: u32) -> ReservationId {
    let reservation = queued(fleet, worker, topic, blocks);
    fleet.router.first_token(NOW, reservation);
    reservation
}

fn row(decision: &Decision, worker: u32) -> &ScoredCandidate {
    decision
        .candidates
        .iter()
        .find(|row| row.target == target(worker))
        .expect("every candidate is kept")
}

/// Prefill blocks, decode blocks and cost of a worker.
fn figures(decision: &Decision, worker: u32) -> (f64, f64, f64) {
    let row = row(decision, worker);
    let term = |name| row.terms.get(name).expect("a term of the policy");
    (term("prefill_blocks"), term("decode_blocks"), row.cost)
}

/// The three workers of the document's example, and a request of five blocks: 8, 5 and 2 blocks to
/// compute, 10, 5 and 9 to hold.
fn example() -> (TestFleet, TestRequest) {
    let fleet = TestFleet::with(3, Policy::DynamoCost);
    let prompt = tokens(1, 5);
    queued(&fleet, 1, 11, 3);
    generating(&fleet, 1, 12, 2);
    generating(&fleet, 3, 13, 4);
    fleet.stored(3, &prompt[..3 * BLOCK as usize], Tier::Device);
    (fleet, test_request(prompt))
}

#[test]
#[contract("DY13", "DY14", "DY15")]
fn the_worked_example_costs_18_10_and_11_and_the_second_worker_wins() {
    let (fleet, request) = example();
    let decision = fleet.plan(NOW, &request).decision;
    assert_eq!(figures(&decision, 1), (8.0, 10.0, 18.0));
    assert_eq!(figures(&decision, 2), (5.0, 5.0, 10.0));
    assert_eq!(figures(&decision, 3), (2.0, 9.0, 11.0));
    assert_eq!(
        (decision.winner.target, decision.cost_unit),
        (target(2), CostUnit::Blocks)
    );
    assert_eq!(
        decision.runner_up,
        Some(RunnerUp {
            target: target(3),
            regret_ms: None
        })
    );
}

#[test]
#[contract("DY15", "DY16")]
fn the_overlap_weight_multiplies_the_blocks_to_compute() {
    let (fleet, request) = example();
    let weighted = |weight| {
        let overrides = Overrides {
            overlap_weight: Some(weight),
            ..Overrides::default()
        };
        fleet
            .preview(
                NOW,
                &TestRequest {
                    overrides,
                    ..request.clone()
                },
            )
            .expect("three workers are free")
    };
    let heavy = weighted(2.0);
    let costs: Vec<f64> = (1..=3).map(|worker| figures(&heavy, worker).2).collect();
    assert_eq!(costs, [26.0, 15.0, 13.0]);
    assert_eq!(
        (
            heavy.winner.target,
            row(&heavy, 3).terms.get("overlap_weight")
        ),
        (target(3), Some(2.0))
    );
    // The cost counts blocks of the candidate's own size, including fractions.
    assert_eq!(figures(&weighted(0.5), 1).2, 14.0);
}

#[test]
#[contract("DY2")]
fn an_overlap_weight_of_zero_balances_active_blocks_regardless_of_caches() {
    let settings = RoutingSettings {
        policy: Policy::DynamoCost,
        section: RoutingSection {
            overlap_weight: 0.0,
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    };
    let fleet = TestFleet::new(2, settings);
    let prompt = tokens(1, 20);
    fleet.stored(1, &prompt, Tier::Device);
    generating(&fleet, 1, 2, 1);
    let decision = fleet.plan(NOW, &test_request(prompt)).decision;
    assert_eq!(
        (
            decision.winner.target,
            row(&decision, 1).cost,
            row(&decision, 2).cost
        ),
        (target(2), 21.0, 20.0)
    );
}

#[test]
#[contract("DY15")]
fn requests_in_flight_and_slower_tiers_add_to_the_cost_only_if_configured() {
    let prompt = tokens(1, 8);
    let costs = |dynamo: DynamoSettings| {
        let settings = RoutingSettings {
            policy: Policy::DynamoCost,
            section: RoutingSection {
                dynamo,
                ..RoutingSection::default()
            },
            ..RoutingSettings::default()
        };
        let fleet = TestFleet::new(3, settings);
        fleet.stored(1, &prompt[..4 * BLOCK as usize], Tier::Host);
        fleet.stored(2, &prompt[..4 * BLOCK as usize], Tier::Disk);
        fleet.stored(3, &prompt[..4 * BLOCK as usize], Tier::Device);
        generating(&fleet, 3, 2, 1);
        let decision = fleet
            .preview(NOW, &test_request(prompt.clone()))
            .expect("three workers are free");
        let prefill: Vec<f64> = (1..=3).map(|worker| figures(&decision, worker).0).collect();
        (
            prefill,
            row(&decision, 3).terms.get("request_blocks"),
            figures(&decision, 3).2,
        )
    };
    // Four blocks to compute, nine active ones on the third worker.
    let usual = costs(DynamoSettings::default());
    assert_eq!(usual, (vec![4.0, 4.0, 4.0], Some(0.0), 13.0));
    let set = DynamoSettings {
        active_request_weight: 64.0,
        host_cache_hit_weight: 0.75,
        disk_cache_hit_weight: 0.25,
    };
    assert_eq!(costs(set), (vec![5.0, 7.0, 4.0], Some(64.0), 77.0));
}

#[test]
#[contract("DY13")]
fn queued_prefill_ends_at_the_first_token() {
    let fleet = TestFleet::with(1, Policy::DynamoCost);
    let earlier = queued(&fleet, 1, 2, 3);
    let prefill = || {
        figures(
            &fleet
                .preview(NOW, &test_request(tokens(1, 5)))
                .expect("free"),
            1,
        )
        .0
    };
    assert_eq!(prefill(), 8.0);
    fleet.router.first_token(NOW, earlier);
    assert_eq!(prefill(), 5.0);
}

#[test]
#[contract("DY14")]
fn blocks_of_a_shared_prefix_count_once_until_its_last_sequence_ends() {
    let fleet = TestFleet::with(1, Policy::DynamoCost);
    let prompt = tokens(1, 5);
    let decode = || {
        figures(
            &fleet
                .preview(NOW, &test_request(prompt.clone()))
                .expect("free"),
            1,
        )
        .1
    };
    let first = fleet
        .plan(NOW, &test_request(prompt[..3 * BLOCK as usize].to_vec()))
        .reservation;
    assert_eq!(decode(), 5.0, "three of five are there already");
    let Plan {
        reservation: second,
        decision,
        ..
    } = fleet.plan(NOW, &test_request(prompt.clone()));
    assert_eq!(decision.winner.reserved.decode_blocks, 2);
    generating(&fleet, 1, 9, 4);
    assert_eq!(decode(), 9.0);
    fleet.router.done(NOW, first);
    assert_eq!(decode(), 9.0, "the second still holds them");
    fleet.router.failed(NOW, second);
    assert_eq!(decode(), 9.0, "4 of the other and 5 of this one");
    assert_eq!(fleet.router.load(target(1)).decode_blocks, 4);
}

#[test]
#[contract("DY11", "DY14")]
fn without_tracking_no_active_blocks_are_counted() {
    let settings = RoutingSettings {
        policy: Policy::DynamoCost,
        section: RoutingSection {
            track_active_blocks: false,
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    };
    let fleet = TestFleet::new(1, settings);
    generating(&fleet, 1, 2, 3);
    let decision = fleet.plan(NOW, &test_request(tokens(1, 5))).decision;
    assert_eq!(figures(&decision, 1), (5.0, 0.0, 5.0));
    assert_eq!(decision.winner.reserved.decode_blocks, 0);
}

#[test]
#[contract("DY3")]
fn at_temperature_zero_equal_costs_are_drawn_and_the_draw_is_repeatable() {
    let winner = |random| {
        let fleet = TestFleet::with(4, Policy::DynamoCost);
        fleet.goes_to(
            NOW,
            &TestRequest {
                random,
                ..test_request(tokens(1, 5))
            },
        )
    };
    let mut wins: HashMap<u32, u32> = HashMap::new();
    for random in 0..400 {
        *wins.entry(winner(random)).or_default() += 1;
    }
    assert_eq!(wins.len(), 4, "{wins:?}");
    assert!(
        wins.values().all(|times| (60..140).contains(times)),
        "{wins:?}"
    );
    assert!((0..20).all(|random| winner(random) == winner(random)));
}

#[test]
#[contract("DY3")]
fn a_temperature_draws_by_cost_with_the_cheapest_likeliest() {
    let mut wins = [0; 4];
    for random in 0..3000 {
        let (fleet, request) = example();
        let overrides = Overrides {
            temperature: Some(0.5),
            ..Overrides::default()
        };
        wins[fleet.goes_to(
            NOW,
            &TestRequest {
                random,
                overrides,
                ..request
            },
        ) as usize] += 1;
    }
    // Weights exp(-x / 0.5) of the costs 18, 10, 11 scaled to 1, 0 and 1/8: shares 7 %, 53 % and
    // 41 %.
    assert!((130..290).contains(&wins[1]), "{wins:?}");
    assert!((1480..1680).contains(&wins[2]), "{wins:?}");
    assert!((1120..1320).contains(&wins[3]), "{wins:?}");
}

#[test]
#[contract("DY30")]
fn potential_loads_include_the_request_and_computing_them_adds_no_load() {
    let (fleet, request) = example();
    for _ in 0..2 {
        let loads = fleet.potential_loads(NOW, &request);
        let figures: Vec<_> = loads
            .iter()
            .map(|load| (&*load.name, load.prefill_tokens, load.decode_blocks))
            .collect();
        assert_eq!(
            figures,
            [("w1", 8 * 16, 10), ("w2", 5 * 16, 5), ("w3", 2 * 16, 9)]
        );
    }
}

#[test]
#[contract("DY1")]
fn a_policy_name_is_accepted_in_every_spelling() {
    for (name, policy) in [
        ("kv", Policy::DynamoCost),
        ("KV", Policy::DynamoCost),
        ("dynamo_cost", Policy::DynamoCost),
        ("dynamo-cost", Policy::DynamoCost),
        ("round-robin", Policy::RoundRobin),
        ("RoundRobin", Policy::RoundRobin),
        ("least-loaded", Policy::LeastLoaded),
        ("kv-aware", Policy::KvAware),
        ("random", Policy::Random),
    ] {
        assert_eq!(name.parse(), Ok(policy), "{name}");
    }
    for policy in Policy::ALL {
        assert_eq!(policy.as_str().parse(), Ok(policy));
    }
    for name in ["", "kv2", "warm ", "dynamo"] {
        assert!(name.parse::<Policy>().is_err(), "{name:?}");
    }
}
