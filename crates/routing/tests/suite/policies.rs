//! The properties of each policy.

use std::{collections::HashSet, time::Duration};

use contract_id::contract;
use kv_blocks::{HashScheme, Moment, SequenceHash, Tier, WorkerId};
use routing::{
    Affinity, CacheSource, CostUnit, MediumWeights, Overrides, Pin, Policy, RoutingSection,
    RoutingSettings,
};

use crate::fleet::{self, BLOCK, TestFleet, TestRequest, at_ms, target, test_request, tokens};

const NOW: Moment = Moment::START;

fn chain(tokens: &[u32]) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, tokens, fleet::block_size())
}

#[test]
fn round_robin_picks_every_target_in_turn() {
    let fleet = TestFleet::with(3, Policy::RoundRobin);
    let order: Vec<u32> = (0..9)
        .map(|_| fleet.goes_to(NOW, &test_request(tokens(1, 2))))
        .collect();
    assert_eq!(order, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
}

#[test]
fn round_robin_skips_an_excluded_target_without_doubling_its_neighbour() {
    let mut fleet = TestFleet::with(4, Policy::RoundRobin);
    let absent = fleet.candidates.remove(1);
    let mut counts = [0; 5];
    for _ in 0..9 {
        counts[fleet.goes_to(NOW, &test_request(tokens(1, 2))) as usize] += 1;
    }
    assert_eq!(counts, [0, 3, 0, 3, 3]);
    fleet.candidates.push(absent);
    assert_eq!(fleet.goes_to(NOW, &test_request(tokens(1, 2))), 2);
    let next: HashSet<u32> = (0..4)
        .map(|_| fleet.goes_to(NOW, &test_request(tokens(1, 2))))
        .collect();
    assert_eq!(next.len(), 4);
}

#[test]
fn round_robin_keeps_turns_per_model() {
    let mut fleet = TestFleet::with(2, Policy::RoundRobin);
    let mut other = fleet.candidates.clone();
    other
        .iter_mut()
        .for_each(|candidate| candidate.namespace.model = "other".into());
    let first = fleet.goes_to(NOW, &test_request(tokens(1, 2)));
    std::mem::swap(&mut fleet.candidates, &mut other);
    assert_eq!(fleet.goes_to(NOW, &test_request(tokens(1, 2))), 1);
    std::mem::swap(&mut fleet.candidates, &mut other);
    assert_eq!(
        (first, fleet.goes_to(NOW, &test_request(tokens(1, 2)))),
        (1, 2)
    );
}

#[test]
fn random_reaches_every_target_about_equally() {
    let fleet = TestFleet::with(4, Policy::Random);
    let counts = fleet.burst(4000, &test_request(tokens(1, 2)));
    assert!(
        counts.iter().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn five_hundred_equal_prompts_spread_exactly_under_least_loaded() {
    let fleet = TestFleet::with(4, Policy::LeastLoaded);
    assert_eq!(fleet.burst(500, &test_request(tokens(1, 40))), [125; 4]);
}

#[test]
fn least_loaded_fills_targets_by_their_weight() {
    let mut fleet = TestFleet::with(3, Policy::LeastLoaded);
    for (candidate, weight) in fleet.candidates.iter_mut().zip([1.0, 2.0, 0.5]) {
        candidate.weight = weight;
    }
    assert_eq!(
        fleet.burst(350, &test_request(tokens(1, 4))),
        [100, 200, 50]
    );
    let decision = fleet.plan(NOW, &test_request(tokens(1, 4))).decision;
    let row = decision
        .candidates
        .iter()
        .find(|row| row.target == target(2))
        .unwrap();
    assert_eq!(
        (
            row.cost,
            row.terms.get("in_flight"),
            row.terms.get("weight")
        ),
        (100.0, Some(200.0), Some(2.0))
    );
    // Equal weights have no effect.
    let mut fleet = TestFleet::with(4, Policy::LeastLoaded);
    fleet
        .candidates
        .iter_mut()
        .for_each(|candidate| candidate.weight = 0.3);
    assert_eq!(fleet.burst(500, &test_request(tokens(1, 40))), [125; 4]);
}

#[test]
fn random_draws_by_weight() {
    let mut fleet = TestFleet::with(3, Policy::Random);
    for (candidate, weight) in fleet.candidates.iter_mut().zip([1.0, 6.0, 3.0]) {
        candidate.weight = weight;
    }
    let counts = fleet.burst(10_000, &test_request(tokens(1, 2)));
    for (count, expected) in counts.iter().zip([1000usize, 6000, 3000]) {
        assert!(count.abs_diff(expected) < 200, "{counts:?}");
    }
}

#[test]
fn a_worker_that_refuses_is_not_credited_with_the_prompt() {
    for cache in [CacheSource::Events, CacheSource::Predicted] {
        let mut fleet = TestFleet::with(2, Policy::Warm);
        fleet
            .candidates
            .iter_mut()
            .for_each(|candidate| candidate.cache = cache);
        let refused = fleet.plan(NOW, &test_request(tokens(1, 40)));
        let refusing = refused.decode.target;
        fleet.router.failed(at_ms(1), refused.reservation);
        assert_eq!(
            (
                fleet.router.open_reservations(),
                fleet.router.load(refusing).in_flight
            ),
            (0, 0)
        );
        let next = fleet.plan(at_ms(2), &test_request(tokens(1, 40)));
        assert_eq!(
            next.decision
                .candidates
                .iter()
                .map(|row| row.warm_tokens.total())
                .max(),
            Some(0),
            "{cache:?}"
        );
        assert_ne!(next.decode.target, refusing, "{cache:?}");
        // Blocks of a served request stay, and a late report on an ended one changes nothing.
        fleet.router.done(at_ms(3), next.reservation);
        fleet.router.failed(at_ms(4), next.reservation);
        fleet.router.failed(at_ms(4), refused.reservation);
        assert_eq!(
            fleet
                .plan(at_ms(5), &test_request(tokens(1, 40)))
                .decision
                .winner
                .predicted_cached_tokens,
            39 * BLOCK
        );
    }
}

#[test]
fn a_refusal_removes_neither_confirmed_blocks_nor_those_renewed_by_another_request() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let warm = |ms| {
        let overlaps = fleet
            .index
            .lookup(&fleet::namespace(), &chain(&tokens(1, 40)), at_ms(ms));
        overlaps.first().map_or((0, 0), |overlap| {
            (overlap.blocks.device, overlap.blocks.speculative)
        })
    };
    let first = fleet.plan(at_ms(0), &test_request(tokens(1, 40)));
    let second = fleet.plan(at_ms(1), &test_request(tokens(1, 30)));
    fleet.stored(1, &tokens(1, 10), Tier::Device);
    assert_eq!(warm(2), (10, 30));
    fleet.router.failed(at_ms(3), first.reservation);
    assert_eq!(warm(4), (10, 20));
    fleet.router.failed(at_ms(5), second.reservation);
    assert_eq!(warm(6), (10, 0));
}

#[test]
fn least_loaded_rotates_while_everything_is_idle() {
    let fleet = TestFleet::with(4, Policy::LeastLoaded);
    let mut counts = [0; 5];
    for random in 0..100 {
        let plan = fleet.plan(
            NOW,
            &TestRequest {
                random,
                ..test_request(tokens(1, 2))
            },
        );
        counts[plan.decode.target.worker.0 as usize] += 1;
        fleet.router.done(NOW, plan.reservation);
    }
    assert_eq!(counts, [0, 25, 25, 25, 25]);
}

#[test]
#[contract("V5", "V7")]
fn kv_aware_picks_the_longest_contiguous_prefix() {
    let fleet = TestFleet::with(3, Policy::KvAware);
    let prompt = tokens(1, 10);
    fleet.stored(1, &prompt[..3 * 16], Tier::Device);
    fleet.stored(2, &prompt[..7 * 16], Tier::Device);
    // Nine of ten blocks match, but not the first: no contiguous prefix.
    let mut gap = prompt.clone();
    gap[0] += 1;
    fleet.stored(3, &gap, Tier::Device);
    let decision = fleet.plan(NOW, &test_request(prompt)).decision;
    assert_eq!(decision.winner.target, target(2));
    assert_eq!(decision.winner.predicted_cached_tokens, 7 * BLOCK);
    assert_eq!(decision.cost_unit, CostUnit::Score);
    assert_eq!(decision.runner_up.expect("another").regret_ms, None);
}

#[test]
#[contract("V6")]
fn a_partial_trailing_block_is_ignored() {
    let fleet = TestFleet::with(2, Policy::KvAware);
    let prompt = tokens(1, 3);
    fleet.stored(2, &prompt, Tier::Device);
    let decision = fleet
        .plan(NOW, &test_request(prompt[..40].to_vec()))
        .decision;
    assert_eq!(decision.winner.target, target(2));
    assert_eq!(decision.winner.prompt_blocks, 2);
    assert_eq!(decision.winner.predicted_cached_tokens, 32);
}

#[test]
#[contract("V7")]
fn kv_aware_without_a_match_picks_the_least_loaded() {
    let fleet = TestFleet::with(3, Policy::KvAware);
    let pinned = |worker| TestRequest {
        pin: Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        }),
        ..test_request(tokens(worker, 2))
    };
    for worker in [1, 1, 2, 3, 3] {
        fleet.plan(NOW, &pinned(worker));
    }
    for random in 0..20 {
        let plan = fleet.plan(
            NOW,
            &TestRequest {
                random,
                ..test_request(tokens(9, 4))
            },
        );
        assert_eq!(plan.decode.target, target(2));
        fleet.router.done(NOW, plan.reservation);
        fleet.index.clear(target(2));
    }
}

#[test]
fn kv_aware_settles_equal_matches_by_load() {
    let fleet = TestFleet::with(2, Policy::KvAware);
    let prompt = tokens(1, 4);
    fleet.stored(1, &prompt, Tier::Device);
    fleet.stored(2, &prompt, Tier::Device);
    let busy = fleet.goes_to(NOW, &test_request(prompt.clone()));
    assert_ne!(fleet.goes_to(NOW, &test_request(prompt)), busy);
}

#[test]
#[contract("V22", "V21")]
fn twelve_disk_blocks_lose_to_ten_gpu_blocks() {
    let prompt = tokens(1, 12);
    let stored = |settings| {
        let fleet = TestFleet::new(2, settings);
        fleet.stored(1, &prompt, Tier::Disk);
        fleet.stored(2, &prompt[..10 * 16], Tier::Device);
        fleet
    };
    let weighted = RoutingSettings {
        policy: Policy::KvAware,
        ..RoutingSettings::default()
    };
    let decision = stored(weighted.clone())
        .plan(NOW, &test_request(prompt.clone()))
        .decision;
    assert_eq!(decision.winner.target, target(2));
    let score = |decision: &routing::Decision, i: usize| {
        decision.candidates[i].terms.get("weighted_blocks").unwrap()
    };
    assert!((score(&decision, 0) - 10.0).abs() < 1e-9 && (score(&decision, 1) - 0.6).abs() < 1e-9);

    // Weights of 1.0 have no effect.
    let plain = RoutingSettings {
        section: RoutingSection {
            medium_weights: MediumWeights {
                gpu: 1.0,
                cpu: 1.0,
                disk: 1.0,
            },
            ..RoutingSection::default()
        },
        ..weighted
    };
    assert_eq!(
        stored(plain.clone()).goes_to(NOW, &test_request(prompt.clone())),
        1
    );
    // A request's model may override the tier weights.
    let overrides = Overrides {
        medium_weights: Some(MediumWeights::default()),
        ..Overrides::default()
    };
    assert_eq!(
        stored(plain).goes_to(
            NOW,
            &TestRequest {
                overrides,
                ..test_request(prompt.clone())
            }
        ),
        2
    );
}

#[test]
#[contract("V14", "V15", "V23")]
fn the_second_prompt_of_a_burst_finds_the_first_ones_blocks_at_once() {
    for policy in [Policy::KvAware, Policy::Warm] {
        let fleet = TestFleet::with(4, policy);
        let first = fleet.plan(NOW, &test_request(tokens(1, 40)));
        assert_eq!(
            first.decision.winner.predicted_cached_tokens, 0,
            "its own insert does not count"
        );
        for random in 0..4 {
            let next = fleet.plan(
                at_ms(1),
                &TestRequest {
                    random,
                    ..test_request(tokens(1, 40))
                },
            );
            assert_eq!(next.decode.target, first.decode.target, "{policy}");
            assert_eq!(next.decision.winner.predicted_cached_tokens, 39 * BLOCK);
            let warm = next.decision.winning().unwrap().warm_tokens;
            assert_eq!((warm.speculative, warm.device), (40 * BLOCK, 0));
        }
    }
}

#[test]
#[contract("V23")]
fn unconfirmed_blocks_weigh_as_gpu_blocks() {
    let fleet = TestFleet::new(
        2,
        RoutingSettings {
            policy: Policy::KvAware,
            section: RoutingSection {
                medium_weights: MediumWeights {
                    gpu: 0.5,
                    cpu: 0.25,
                    disk: 0.125,
                },
                ..RoutingSection::default()
            },
            ..RoutingSettings::default()
        },
    );
    let first = fleet.plan(NOW, &test_request(tokens(1, 40)));
    let next = fleet.plan(at_ms(1), &test_request(tokens(1, 40)));
    assert_eq!(next.decode.target, first.decode.target);
    let row = next.decision.winning().unwrap();
    assert_eq!(
        ["device_blocks", "speculative_blocks", "weighted_blocks"].map(|name| row.terms.get(name)),
        [Some(0.0), Some(40.0), Some(20.0)]
    );
}

#[test]
#[contract("V15")]
fn an_entry_that_no_event_confirms_expires() {
    let fleet = TestFleet::with(2, Policy::KvAware);
    let first = fleet.plan(NOW, &test_request(tokens(1, 40)));
    fleet.router.done(at_ms(10), first.reservation);
    assert_eq!(
        fleet
            .plan(at_ms(1_999), &test_request(tokens(1, 40)))
            .decision
            .winner
            .predicted_cached_tokens,
        39 * BLOCK
    );

    let fleet = TestFleet::with(2, Policy::KvAware);
    fleet.plan(NOW, &test_request(tokens(1, 40)));
    assert_eq!(
        fleet
            .plan(at_ms(2_001), &test_request(tokens(1, 40)))
            .decision
            .winner
            .predicted_cached_tokens,
        0
    );
}

#[test]
fn an_unconfirmed_entry_outlives_the_queue_in_front_of_its_prefill() {
    let fleet = TestFleet::with(1, Policy::Warm);
    // 70,000 tokens at the prior's 7,000 a second: ten seconds of queue.
    fleet.plan(NOW, &test_request(tokens(1, 70_000 / BLOCK)));
    fleet.plan(NOW, &test_request(tokens(2, 40)));
    assert_eq!(
        fleet
            .plan(at_ms(11_000), &test_request(tokens(2, 40)))
            .decision
            .winner
            .predicted_cached_tokens,
        39 * BLOCK
    );
    assert_eq!(
        fleet
            .plan(at_ms(30_000), &test_request(tokens(3, 40)))
            .decision
            .winner
            .predicted_cached_tokens,
        0
    );
}

#[test]
fn unconfirmed_credit_ends_after_the_configured_time() {
    let settings = RoutingSettings {
        section: RoutingSection {
            speculative_ttl: Duration::from_millis(500),
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    };
    let fleet = TestFleet::new(2, settings);
    let plan = fleet.plan(NOW, &test_request(tokens(1, 40)));
    // Its blocks count as active until its end.
    fleet.router.done(at_ms(1), plan.reservation);
    let predicted = |ms| {
        let decision = fleet.preview(at_ms(ms), &test_request(tokens(1, 40)));
        let decision = decision.expect("a target is eligible");
        let rows = decision.candidates.iter();
        rows.map(|row| row.predicted_cached_tokens).max()
    };
    assert!(predicted(499) > Some(0));
    assert_eq!(predicted(501), Some(0));
}

#[test]
fn without_speculation_a_target_with_events_gets_no_unconfirmed_credit() {
    let settings = RoutingSettings {
        section: RoutingSection {
            speculative: false,
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    };
    let mut fleet = TestFleet::new(2, settings);
    fleet.plan(NOW, &test_request(tokens(1, 40)));
    assert_eq!(
        fleet
            .plan(NOW, &test_request(tokens(1, 40)))
            .decision
            .winner
            .predicted_cached_tokens,
        0
    );

    // A target without events still has predicted entries, for two minutes.
    fleet
        .candidates
        .iter_mut()
        .for_each(|candidate| candidate.cache = CacheSource::Predicted);
    fleet.plan(NOW, &test_request(tokens(2, 40)));
    let later = |ms| {
        fleet
            .plan(at_ms(ms), &test_request(tokens(2, 40)))
            .decision
            .winner
            .predicted_cached_tokens
    };
    assert_eq!(later(119_000), 39 * BLOCK);
    let fleet = TestFleet {
        candidates: fleet.candidates,
        ..TestFleet::with(2, Policy::Warm)
    };
    fleet.plan(NOW, &test_request(tokens(2, 40)));
    assert_eq!(
        fleet
            .plan(at_ms(121_000), &test_request(tokens(2, 40)))
            .decision
            .winner
            .predicted_cached_tokens,
        0
    );
}

#[test]
fn a_long_queue_outweighs_a_longer_cached_prefix() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let prompt = tokens(1, 60);
    fleet.stored(1, &prompt, Tier::Device);
    assert_eq!(fleet.goes_to(NOW, &test_request(prompt.clone())), 1);
    let queue = TestRequest {
        pin: Some(Pin {
            worker: WorkerId(1),
            rank: None,
        }),
        ..test_request(tokens(2, 250))
    };
    fleet.plan(NOW, &queue);
    let decision = fleet.plan(NOW, &test_request(prompt)).decision;
    assert_eq!(decision.winner.target, target(2));
    assert!(decision.runner_up.unwrap().regret_ms.unwrap() > 0.0);
    assert_eq!(decision.candidates[1].predicted_cached_tokens, 59 * BLOCK);
}

#[test]
fn warm_waits_for_a_warm_target_while_the_wait_is_shorter_than_the_prefill() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let prompt = tokens(1, 250);
    fleet.stored(1, &prompt, Tier::Device);
    let queue = TestRequest {
        pin: Some(Pin {
            worker: WorkerId(1),
            rank: None,
        }),
        ..test_request(tokens(2, 60))
    };
    fleet.plan(NOW, &queue);
    assert_eq!(fleet.goes_to(NOW, &test_request(prompt)), 1);
}

#[test]
fn the_terms_of_warm_add_up_to_its_cost() {
    let mut fleet = TestFleet::with(3, Policy::Warm);
    fleet
        .candidates
        .iter_mut()
        .for_each(|candidate| candidate.total_blocks = Some(100));
    fleet.stored(2, &tokens(1, 30), Tier::Host);
    for i in 0..60u32 {
        let overrides = Overrides {
            overlap_weight: Some(f64::from(i % 3)),
            ..Overrides::default()
        };
        let plan = fleet.plan(
            at_ms(u64::from(i)),
            &TestRequest {
                overrides,
                ..test_request(tokens(i % 5, 30 + i))
            },
        );
        for row in &plan.decision.candidates {
            let sum: f64 = row.terms.iter().map(|(_, value)| value).sum();
            assert!((sum - row.cost).abs() < 1e-6, "{row:?}");
            assert!(row.predicted_ttft_ms.unwrap() > 0.0);
        }
        if i % 2 == 0 {
            fleet
                .router
                .first_token(at_ms(u64::from(i)), plan.reservation);
        }
    }
}

#[test]
fn a_burst_of_equal_prompts_never_stays_on_one_worker() {
    for blocks in [0, 1, 8, 60, 500, 2000] {
        let fleet = TestFleet::with(4, Policy::Warm);
        let counts = fleet.burst(500, &test_request(tokens(1, blocks)));
        assert!(
            counts.iter().all(|count| *count <= 250),
            "{blocks} blocks: {counts:?}"
        );
    }
}

#[test]
fn a_burst_of_different_prompts_spreads_evenly() {
    for policy in [Policy::Warm, Policy::KvAware, Policy::LeastLoaded] {
        let fleet = TestFleet::with(4, policy);
        let mut counts = [0; 4];
        for i in 0..200u32 {
            let request = TestRequest {
                random: u64::from(i) * 77,
                ..test_request(tokens(i, 20))
            };
            counts[fleet.goes_to(NOW, &request) as usize - 1] += 1;
        }
        assert!(
            counts.iter().all(|count| (45..=55).contains(count)),
            "{policy}: {counts:?}"
        );
    }
}

#[test]
fn misses_on_an_idle_fleet_use_every_cache() {
    let fleet = TestFleet::with(4, Policy::Warm);
    let mut counts = [0; 4];
    for i in 0..100u32 {
        let now = at_ms(u64::from(i) * 1000);
        let plan = fleet.plan(
            now,
            &TestRequest {
                random: u64::from(i),
                ..test_request(tokens(i, 40))
            },
        );
        counts[plan.decode.target.worker.0 as usize - 1] += 1;
        fleet.router.first_token(
            now + std::time::Duration::from_millis(100),
            plan.reservation,
        );
        fleet.router.done(
            now + std::time::Duration::from_millis(500),
            plan.reservation,
        );
    }
    assert!(
        counts.iter().all(|count| (20..=30).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn a_slower_engine_gets_fewer_requests_once_its_speed_is_known() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let mut late = [0; 2];
    for i in 0..120u32 {
        let now = at_ms(u64::from(i) * 10_000);
        let prompt = test_request(tokens(i, 20 + (i * 13) % 90));
        let plan = fleet.plan(now, &prompt);
        let slow = plan.decode.target == target(2);
        let tokens_per_s = if slow { 500.0 } else { 10_000.0 };
        let took =
            std::time::Duration::from_secs_f64(0.002 + prompt.tokens.len() as f64 / tokens_per_s);
        fleet.router.first_token(now + took, plan.reservation);
        fleet.router.done(now + took, plan.reservation);
        if i >= 60 {
            late[usize::from(slow)] += 1;
        }
    }
    assert!(late[1] <= 2, "{late:?}");
    let rates = fleet.router.rates(WorkerId(1));
    assert!(
        rates.learned && (9_000.0..11_000.0).contains(&rates.prefill_tokens_per_s),
        "{rates:?}"
    );
}

#[test]
fn active_blocks_beyond_the_cache_cost_time() {
    let mut fleet = TestFleet::with(2, Policy::Warm);
    fleet.candidates[0].total_blocks = Some(64);
    fleet.candidates[1].total_blocks = Some(100_000);
    let decision = fleet.plan(NOW, &test_request(tokens(1, 200))).decision;
    assert_eq!(decision.winner.target, target(2));
    assert!(decision.candidates[1].terms.get("eviction_ms").unwrap() > 1000.0);
    assert_eq!(
        decision.candidates[0].terms.get("eviction_ms").unwrap(),
        0.0
    );
}

#[test]
fn a_joining_worker_is_filled_gradually() {
    let mut fleet = TestFleet::with(4, Policy::Warm);
    let newcomer = fleet.candidates.pop().unwrap();
    let serve = |fleet: &TestFleet, second: u32, prompt: Vec<u32>| {
        let now = at_ms(u64::from(second) * 1000);
        let plan = fleet.plan(
            now,
            &TestRequest {
                random: second.into(),
                ..test_request(prompt.clone())
            },
        );
        fleet.stored(plan.decode.target.worker.0, &prompt, Tier::Device);
        fleet.router.first_token(
            now + std::time::Duration::from_millis(150),
            plan.reservation,
        );
        fleet.router.done(
            now + std::time::Duration::from_millis(500),
            plan.reservation,
        );
        plan.decode.target == target(4)
    };
    for second in 0..300 {
        serve(&fleet, second, tokens(second, 60));
    }
    fleet.candidates.push(newcomer);
    let second_turn = |topic: u32| [tokens(topic, 60), tokens(topic + 2000, 30)].concat();
    let moved = (300..330)
        .filter(|second| serve(&fleet, *second, second_turn(*second - 60)))
        .count();
    assert_eq!(moved, 0, "warm conversations stay where they are");
    let fresh = (330..370)
        .filter(|second| serve(&fleet, *second, tokens(*second + 1000, 60)))
        .count();
    assert!((5..=20).contains(&fresh), "{fresh} of 40 new ones");
}

#[test]
#[contract("V44")]
fn prefix_memory_applies_only_without_a_cache_match_and_below_the_load_bound() {
    let prompt = tokens(1, 10);
    let hinted = |policy| TestRequest {
        policy: Some(policy),
        affinity: Affinity {
            served_by: Some(WorkerId(2)),
            ..Affinity::default()
        },
        ..test_request(prompt.clone())
    };
    for policy in [Policy::KvAware, Policy::CacheAware] {
        let fleet = TestFleet::with(4, policy);
        let winner_of = |fleet: &TestFleet| {
            let decision = fleet.preview(NOW, &hinted(policy)).expect("four are free");
            let row = decision
                .candidates
                .iter()
                .find(|row| row.target == target(2))
                .expect("all are kept");
            (
                decision.winner.target,
                row.terms.get("remembered"),
                row.cost,
            )
        };
        assert_eq!(winner_of(&fleet), (target(2), Some(1.0), 0.0), "{policy}");
        // Its even share and a quarter: three of six requests in flight and this one.
        let on = |worker| TestRequest {
            pin: Some(Pin {
                worker: WorkerId(worker),
                rank: None,
            }),
            ..test_request(tokens(9, 1))
        };
        (0..2).for_each(|_| drop(fleet.plan(NOW, &on(2))));
        (0..4).for_each(|_| drop(fleet.plan(NOW, &on(1))));
        assert_eq!(winner_of(&fleet).0, target(2), "{policy}");
        fleet.plan(NOW, &on(2));
        let full = winner_of(&fleet);
        assert!(
            full.0 != target(2) && full.1 == Some(0.0),
            "{policy}: {full:?}"
        );
    }
    for policy in [Policy::KvAware, Policy::CacheAware] {
        let fleet = TestFleet::with(4, policy);
        fleet.stored(3, &prompt[..5 * BLOCK as usize], Tier::Device);
        assert_eq!(fleet.goes_to(NOW, &hinted(policy)), 3, "{policy}");
    }
    // Other policies ignore it, and without overlap weight every policy does.
    let fleet = TestFleet::with(4, Policy::LeastLoaded);
    (0..8).for_each(|_| drop(fleet.plan(NOW, &hinted(Policy::LeastLoaded))));
    assert_eq!(fleet.router.load(target(2)).in_flight, 2);
    let blind = Overrides {
        overlap_weight: Some(0.0),
        ..Overrides::default()
    };
    let decision = TestFleet::with(4, Policy::KvAware)
        .plan(
            NOW,
            &TestRequest {
                overrides: blind,
                ..hinted(Policy::KvAware)
            },
        )
        .decision;
    assert!(
        decision
            .candidates
            .iter()
            .all(|row| row.terms.get("remembered") == Some(0.0))
    );
}
