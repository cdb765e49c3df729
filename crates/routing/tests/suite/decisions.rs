//! Properties of every decision under every policy.

use std::collections::HashSet;

use kv_blocks::{DpRank, Moment, Tier, WorkerId};
use routing::{Dispatch, ExcludeReason, Method, Overrides, Pin, Policy, RoutingSettings, Tiers};

use crate::fleet::{BLOCK, TestFleet, TestRequest, candidate, target, test_request, tokens};

const NOW: Moment = Moment::START;

#[test]
fn an_overlap_weight_of_zero_balances_load_alone() {
    for policy in [Policy::KvAware, Policy::Warm] {
        let fleet = TestFleet::with(2, policy);
        let prompt = tokens(1, 100);
        fleet.stored(1, &prompt, Tier::Device);
        fleet.plan(NOW, &test_request(prompt.clone()));
        let overrides = Overrides {
            overlap_weight: Some(0.0),
            ..Overrides::default()
        };
        assert_eq!(
            fleet.goes_to(
                NOW,
                &TestRequest {
                    overrides,
                    ..test_request(prompt)
                }
            ),
            2,
            "{policy}"
        );
    }
}

#[test]
fn a_temperature_also_draws_targets_with_higher_costs() {
    for (policy, draws) in [
        (Policy::KvAware, true),
        (Policy::Warm, true),
        (Policy::LeastLoaded, false),
    ] {
        let mut winners = HashSet::new();
        for random in 0..50 {
            let fleet = TestFleet::with(2, policy);
            fleet.stored(1, &tokens(1, 100), Tier::Device);
            fleet.plan(
                NOW,
                &TestRequest {
                    pin: Some(Pin {
                        worker: WorkerId(2),
                        rank: None,
                    }),
                    ..test_request(tokens(7, 1))
                },
            );
            let overrides = Overrides {
                temperature: Some(1.0),
                ..Overrides::default()
            };
            winners.insert(fleet.goes_to(
                NOW,
                &TestRequest {
                    random,
                    overrides,
                    ..test_request(tokens(1, 100))
                },
            ));
        }
        assert_eq!(winners.len() == 2, draws, "{policy}");
    }
}

#[test]
fn a_pin_overrides_every_cost_and_the_others_carry_the_reason() {
    let fleet = TestFleet::with(3, Policy::Warm);
    fleet.stored(1, &tokens(1, 50), Tier::Device);
    let pin = Some(Pin {
        worker: WorkerId(3),
        rank: None,
    });
    let decision = fleet
        .plan(
            NOW,
            &TestRequest {
                pin,
                ..test_request(tokens(1, 50))
            },
        )
        .decision;
    assert_eq!(
        (
            decision.winner.target,
            decision.method,
            decision.candidates_total
        ),
        (target(3), Method::Pinned, 1)
    );
    let reasons: Vec<_> = decision
        .excluded
        .iter()
        .map(|excluded| (&*excluded.name, excluded.reason))
        .collect();
    assert_eq!(
        reasons,
        [
            ("w1", ExcludeReason::NotPinned),
            ("w2", ExcludeReason::NotPinned)
        ]
    );
}

#[test]
fn a_pin_to_a_missing_rank_is_refused_with_the_reasons() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let pin = Some(Pin {
        worker: WorkerId(1),
        rank: Some(DpRank(3)),
    });
    let Dispatch::Refused(refusal) = fleet.dispatch(
        NOW,
        &TestRequest {
            pin,
            ..test_request(tokens(1, 5))
        },
    ) else {
        panic!("no such rank")
    };
    assert_eq!(refusal.excluded.len(), 2);
    assert_eq!(fleet.router.open_reservations(), 0);
}

#[test]
fn a_single_candidate_is_recorded_as_the_only_one() {
    for policy in Policy::ALL {
        let fleet = TestFleet::with(1, policy);
        let decision = fleet.plan(NOW, &test_request(tokens(1, 5))).decision;
        assert_eq!(decision.method, Method::OnlyCandidate);
        assert_eq!(decision.runner_up, None);
    }
}

#[test]
fn no_eligible_candidate_is_a_refusal_under_every_policy() {
    for policy in Policy::ALL {
        let mut fleet = TestFleet::with(1, policy);
        fleet.candidates.clear();
        let refused = fleet.dispatch(NOW, &test_request(tokens(1, 5)));
        assert!(matches!(refused, Dispatch::Refused(refusal) if refusal.policy == policy));
    }
}

#[test]
fn the_last_token_is_never_predicted_as_cached() {
    let fleet = TestFleet::with(1, Policy::Warm);
    fleet.stored(1, &tokens(1, 10), Tier::Device);
    // Exactly ten blocks: the engine computes the last block again for the logits.
    let exact = fleet.plan(NOW, &test_request(tokens(1, 10))).decision;
    assert_eq!(exact.winner.predicted_cached_tokens, 9 * BLOCK);
    assert_eq!(exact.winner.reserved.prefill_tokens, BLOCK);
    let mut longer = tokens(1, 10);
    longer.push(5);
    assert_eq!(
        fleet
            .plan(NOW, &test_request(longer))
            .decision
            .winner
            .predicted_cached_tokens,
        10 * BLOCK
    );
}

#[test]
fn a_tier_that_the_engine_does_not_reuse_is_not_counted() {
    let mut fleet = TestFleet::with(2, Policy::KvAware);
    fleet.stored(1, &tokens(1, 10), Tier::Remote);
    let decision = fleet.plan(NOW, &test_request(tokens(1, 10))).decision;
    assert_eq!(decision.winner.predicted_cached_tokens, 0);
    fleet.candidates[0].tiers = Tiers::ALL;
    let fleet = TestFleet {
        candidates: fleet.candidates,
        ..TestFleet::with(2, Policy::KvAware)
    };
    fleet.stored(1, &tokens(1, 10), Tier::Remote);
    let decision = fleet.plan(NOW, &test_request(tokens(1, 10))).decision;
    assert_eq!(
        (
            decision.winner.target,
            decision.winner.predicted_cached_tokens
        ),
        (target(1), 9 * BLOCK)
    );
}

#[test]
fn announced_blocks_of_an_untrusted_target_are_reported_beside_the_credited_ones() {
    let fleet = TestFleet::with(1, Policy::Warm);
    fleet.stored(1, &tokens(1, 10), Tier::Device);
    fleet.stored(1, &tokens(2, 10), Tier::Remote);
    let credit_of = |topic| {
        let decision = fleet
            .preview(NOW, &test_request(tokens(topic, 10)))
            .expect("one worker is free");
        (
            decision.winner.predicted_cached_tokens,
            decision.winner.announced_cached_tokens,
        )
    };
    assert_eq!(
        credit_of(1),
        (9 * BLOCK, 9 * BLOCK),
        "trusted: both are what it announced, less the last token"
    );
    assert_eq!(
        credit_of(2),
        (0, 0),
        "neither counts a tier that it does not reuse"
    );
    fleet.index.trust(target(1), false);
    assert_eq!(credit_of(1), (0, 9 * BLOCK));
}

#[test]
fn adapters_and_salts_do_not_share_cached_blocks() {
    let mut fleet = TestFleet::with(2, Policy::Warm);
    fleet.stored(1, &tokens(1, 10), Tier::Device);
    fleet
        .candidates
        .iter_mut()
        .for_each(|candidate| candidate.namespace.salt = Some("a".into()));
    assert_eq!(
        fleet
            .plan(NOW, &test_request(tokens(1, 10)))
            .decision
            .winner
            .predicted_cached_tokens,
        0
    );
}

#[test]
fn an_unknown_prompt_still_gets_a_target() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let blind = routing::Job {
        targets: routing::TargetPool {
            candidates: &fleet.candidates,
            ..routing::TargetPool::default()
        },
        random: 3,
        ..routing::Job::default()
    };
    assert!(matches!(
        fleet.router.decide(NOW, &blind),
        Dispatch::Plan(_)
    ));
}

#[test]
fn a_decision_keeps_the_most_relevant_candidates() {
    let mut fleet = TestFleet::new(
        40,
        RoutingSettings {
            kept_candidates: 5,
            ..RoutingSettings::default()
        },
    );
    fleet.candidates.push(candidate(41));
    fleet.stored(30, &tokens(1, 50), Tier::Device);
    fleet.plan(
        NOW,
        &TestRequest {
            pin: Some(Pin {
                worker: WorkerId(30),
                rank: None,
            }),
            ..test_request(tokens(2, 3000))
        },
    );
    let decision = fleet.plan(NOW, &test_request(tokens(1, 50))).decision;
    assert_eq!(
        (decision.candidates.len(), decision.candidates_total),
        (5, 41)
    );
    assert!(
        decision
            .candidates
            .iter()
            .any(|row| row.target == target(30)),
        "the warmest is kept, whatever its rank"
    );
    assert_eq!(decision.candidates[0].target, decision.winner.target);
    let runner_up = decision.runner_up.expect("there are others");
    assert_eq!(decision.candidates[1].target, runner_up.target);
    assert!(
        decision
            .candidates
            .windows(2)
            .all(|pair| pair[0].rank < pair[1].rank)
    );
}
