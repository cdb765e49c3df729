//! Policy `lmcache_aware`: score, longest match and fallback.

use contract_id::contract;
use kv_blocks::Moment;
use routing::{
    Decision, LmcacheFacts, LmcacheSettings, Method, Overrides, Policy, RoutingSettings,
};

use crate::fleet::{TestFleet, TestRequest, test_request};

const NOW: Moment = Moment::START;

/// Workers `w1`, `w2`, ... with the controller's data: chunks cached, tokens matched.
fn fleet_with(facts: &[(Option<u64>, Option<u32>)], settings: LmcacheSettings) -> TestFleet {
    let settings = RoutingSettings {
        policy: Policy::LmcacheAware,
        lmcache: settings,
        ..RoutingSettings::default()
    };
    let mut fleet = TestFleet::new(u32::try_from(facts.len()).expect("few"), settings);
    for (candidate, (keys, matched_tokens)) in fleet.candidates.iter_mut().zip(facts) {
        candidate.lmcache = LmcacheFacts {
            keys: *keys,
            matched_tokens: *matched_tokens,
        };
    }
    fleet
}

fn usual(facts: &[(Option<u64>, Option<u32>)]) -> TestFleet {
    fleet_with(facts, LmcacheSettings::default())
}

fn prompt() -> TestRequest {
    test_request((0..160).collect())
}

/// Puts `count` requests in flight on a worker.
fn busy(fleet: &TestFleet, worker: u32, count: u64) {
    for random in 0..count {
        let pin = Some(routing::Pin {
            worker: kv_blocks::WorkerId(worker),
            rank: None,
        });
        fleet.plan(
            NOW,
            &TestRequest {
                pin,
                random,
                ..prompt()
            },
        );
    }
}

fn decided(fleet: &TestFleet) -> Decision {
    fleet.preview(NOW, &prompt()).expect("a target is eligible")
}

fn row<'a>(decision: &'a Decision, worker: &str) -> &'a routing::ScoredCandidate {
    decision
        .candidates
        .iter()
        .find(|row| *row.name == *worker)
        .expect("a candidate")
}

#[test]
#[contract("V29")]
fn the_score_is_seven_tenths_cached_chunks_and_three_tenths_free_capacity() {
    let fleet = usual(&[(Some(100), None), (Some(50), None), (Some(0), None)]);
    busy(&fleet, 1, 2);
    busy(&fleet, 2, 1);
    let decision = decided(&fleet);
    for (worker, expected) in [
        // 0.7 * 100/100 + 0.3 * (1 - 2/2)
        ("w1", 0.7),
        // 0.7 * 50/100 + 0.3 * (1 - 1/2)
        ("w2", 0.5),
        // 0.7 * 0/100 + 0.3 * (1 - 0/2)
        ("w3", 0.3),
    ] {
        let score = 1.0 - row(&decision, worker).cost;
        assert!((score - expected).abs() < 1e-9, "{worker}: {score}");
    }
    assert_eq!(
        (&*decision.winner.name, decision.method),
        ("w1", Method::Policy)
    );
    assert_eq!(decision.label, Some("lmcache_occupancy"));
    let terms = row(&decision, "w2").terms;
    let term = |name| terms.get(name);
    assert_eq!(
        (term("keys"), term("in_flight"), term("by_prefix")),
        (Some(50.0), Some(1.0), Some(0.0))
    );
}

#[test]
#[contract("V29")]
fn the_fullest_cache_wins_at_equal_load_and_not_under_much_more_load() {
    let fleet = usual(&[(Some(60), None), (Some(100), None)]);
    assert_eq!(&*decided(&fleet).winner.name, "w2");
    busy(&fleet, 2, 3);
    // 0.7 * 0.6 + 0.3 is more than 0.7.
    assert_eq!(&*decided(&fleet).winner.name, "w1");
}

#[test]
#[contract("V29")]
fn the_cache_weight_ranges_from_load_only_to_cache_only() {
    let facts = [(Some(1), None), (Some(1_000), None)];
    for (cache_weight, winner) in [(0.0, "w1"), (1.0, "w2")] {
        let fleet = fleet_with(
            &facts,
            LmcacheSettings {
                cache_weight,
                ..LmcacheSettings::default()
            },
        );
        busy(&fleet, 2, 1);
        assert_eq!(&*decided(&fleet).winner.name, winner, "at {cache_weight}");
    }
}

#[test]
#[contract("V29")]
fn a_worker_unknown_to_the_controller_scores_by_its_load_only() {
    let fleet = usual(&[(None, None), (Some(10), None)]);
    let decision = decided(&fleet);
    assert_eq!(
        (&*decision.winner.name, decision.method),
        ("w2", Method::Policy)
    );
    assert!((1.0 - row(&decision, "w1").cost - 0.3).abs() < 1e-9);
}

#[test]
#[contract("V29")]
fn without_controller_data_the_fallback_decides_and_the_receipt_shows_it() {
    let fleet = usual(&[(None, None), (None, None), (None, Some(0))]);
    let decision = decided(&fleet);
    assert_eq!(
        (decision.policy, decision.method),
        (Policy::LmcacheAware, Method::Fallback)
    );
    assert!(
        decision
            .candidates
            .iter()
            .all(|row| row.terms.get("fallback") == Some(1.0))
    );
    // As `power_of_two`: the less loaded of two drawn, so never the most loaded of three.
    busy(&fleet, 3, 5);
    for random in 0..200 {
        let decision = fleet
            .preview(NOW, &TestRequest { random, ..prompt() })
            .expect("a target is eligible");
        assert_ne!(&*decision.winner.name, "w3");
    }
    let last = LmcacheSettings {
        fallback: Policy::LeastLoaded,
        ..LmcacheSettings::default()
    };
    let fleet = fleet_with(&[(None, None), (None, None)], last);
    busy(&fleet, 1, 1);
    assert_eq!(&*decided(&fleet).winner.name, "w2");
    // A policy that uses a key of the request, or this policy itself, cannot be the fallback.
    for fallback in [Policy::LmcacheAware, Policy::PrefixHash, Policy::Composite] {
        let fleet = fleet_with(
            &[(None, None)],
            LmcacheSettings {
                fallback,
                ..LmcacheSettings::default()
            },
        );
        assert_eq!(&*decided(&fleet).winner.name, "w1");
    }
}

#[test]
#[contract("V29")]
fn without_overlap_weight_the_fallback_decides() {
    let fleet = usual(&[(Some(10), Some(160)), (Some(900), None)]);
    let overrides = Overrides {
        overlap_weight: Some(0.0),
        ..Overrides::default()
    };
    let decision = fleet
        .preview(
            NOW,
            &TestRequest {
                overrides,
                ..prompt()
            },
        )
        .expect("a target is eligible");
    assert_eq!(decision.method, Method::Fallback);
}

#[test]
#[contract("V30")]
fn the_largest_match_wins_regardless_of_occupancy_and_load() {
    let fleet = usual(&[(Some(9_000), Some(32)), (Some(1), Some(144)), (None, None)]);
    busy(&fleet, 2, 8);
    let decision = decided(&fleet);
    assert_eq!(
        (&*decision.winner.name, decision.method),
        ("w2", Method::Policy)
    );
    assert_eq!(decision.label, Some("lmcache_prefix"));
    let costs: Vec<f64> = ["w1", "w2", "w3"]
        .map(|worker| row(&decision, worker).cost)
        .into();
    assert!(
        (costs[0] - (1.0 - 32.0 / 144.0)).abs() < 1e-9 && costs[1] == 0.0 && costs[2] == 1.0,
        "{costs:?}"
    );
    let terms = row(&decision, "w1").terms;
    assert_eq!(
        (terms.get("matched_tokens"), terms.get("by_prefix")),
        (Some(32.0), Some(1.0))
    );
}

#[test]
#[contract("V30")]
fn equal_matches_go_to_the_fewest_in_flight() {
    let fleet = usual(&[(None, Some(96)), (None, Some(96))]);
    busy(&fleet, 1, 1);
    assert_eq!(&*decided(&fleet).winner.name, "w2");
}

#[test]
#[contract("V30")]
fn without_a_match_cache_occupancy_decides() {
    let fleet = usual(&[(Some(5), Some(0)), (Some(10), None)]);
    let decision = decided(&fleet);
    assert_eq!(
        (&*decision.winner.name, decision.label),
        ("w2", Some("lmcache_occupancy"))
    );
}

#[test]
#[contract("V29")]
fn a_fallback_to_warm_has_costs_in_time() {
    let warm = LmcacheSettings {
        fallback: Policy::Warm,
        ..LmcacheSettings::default()
    };
    let decision = decided(&fleet_with(&[(None, None), (None, None)], warm));
    assert_eq!(
        (decision.method, decision.cost_unit),
        (Method::Fallback, routing::CostUnit::Ms)
    );
    assert!(
        decision
            .winning()
            .expect("it is kept")
            .predicted_ttft_ms
            .is_some()
    );
}
