//! Two pools for one request: the prefill and the decode worker, the load counted on each, and its
//! release.

use contract_id::contract;
use kv_blocks::{DpRank, Moment, Tier, WorkerId};
use proptest::prelude::*;
use routing::{
    Decision, ExcludeReason, ExcludedTarget, Pin, Plan, Policy, PrefillSkip, ReplyMode,
    RoutingSettings, TargetLoad,
};

use crate::fleet::{
    PrefillWorkers, TestFleet, TestRandom, at_ms, candidate, target, test_request, tokens,
};

const NOW: Moment = Moment::START;

/// Decode workers are numbered from 1, prefill workers from 11.
fn pools(decode: u32, prefill: u32) -> TestFleet {
    with(decode, prefill, RoutingSettings::default())
}

fn with(decode: u32, prefill: u32, settings: RoutingSettings) -> TestFleet {
    let mut fleet = TestFleet::new(decode, settings);
    let candidates: Vec<_> = (11..11 + prefill).map(candidate).collect();
    candidates
        .iter()
        .for_each(|candidate| fleet.index.register(candidate.target, "m".into()));
    fleet.pool = Some(PrefillWorkers {
        candidates,
        ..PrefillWorkers::default()
    });
    fleet
}

fn threshold(fleet: &mut TestFleet, tokens: u32) {
    fleet.pool.as_mut().expect("there is a pool").threshold = tokens;
}

fn leg(plan: &Plan) -> u32 {
    plan.prefill
        .as_ref()
        .expect("a prefill worker is chosen")
        .target
        .worker
        .0
}

fn skipped(decision: &Decision) -> Option<PrefillSkip> {
    decision
        .prefill
        .as_ref()
        .expect("there are two pools")
        .skipped
}

#[test]
#[contract("DY25")]
fn each_leg_is_chosen_by_its_own_policy_among_its_own_workers() {
    let mut fleet = with(
        2,
        2,
        RoutingSettings {
            policy: Policy::KvAware,
            ..RoutingSettings::default()
        },
    );
    fleet.pool.as_mut().expect("a pool").policy = Some(Policy::RoundRobin);
    fleet.stored(2, &tokens(1, 10), Tier::Device);
    fleet.stored(12, &tokens(1, 10), Tier::Device);
    let plans: Vec<Plan> = (0..4)
        .map(|_| fleet.plan(NOW, &test_request(tokens(1, 20))))
        .collect();
    assert!(
        plans.iter().all(|plan| plan.decode.target == target(2)),
        "the longest prefix"
    );
    assert_eq!(
        plans.iter().map(leg).collect::<Vec<_>>(),
        [11, 12, 11, 12],
        "each in turn"
    );
    assert_eq!(plans[0].decision.policy, Policy::KvAware);
}

#[test]
#[contract("DY25")]
fn the_prefill_goes_to_the_prefill_worker_that_has_the_prompt_cached() {
    let fleet = pools(2, 3);
    fleet.stored(12, &tokens(1, 60), Tier::Device);
    let plan = fleet.plan(NOW, &test_request(tokens(1, 64)));
    assert_eq!(leg(&plan), 12);
    let leg = plan.prefill.as_ref().expect("a leg");
    assert_eq!(
        (leg.predicted_cached_tokens, leg.announced_cached_tokens),
        (60 * 16, 60 * 16)
    );
    assert_eq!(
        plan.decision
            .prefill
            .expect("a note")
            .target
            .expect("a target")
            .0,
        target(12)
    );
}

#[test]
#[contract("DY25")]
fn prompt_tokens_count_on_the_prefill_worker_and_blocks_on_the_decode_worker() {
    let fleet = pools(1, 1);
    let plan = fleet.plan(NOW, &test_request(tokens(1, 10)));
    let prefill = TargetLoad {
        in_flight: 1,
        queued_prefill_tokens: 160,
        ..TargetLoad::default()
    };
    let decode = TargetLoad {
        in_flight: 1,
        decode_blocks: 10,
        ..TargetLoad::default()
    };
    assert_eq!(
        (fleet.router.load(target(11)), fleet.router.load(target(1))),
        (prefill, decode)
    );
    assert_eq!(
        (
            plan.decision.winner.reserved.prefill_tokens,
            plan.decision.winner.reserved.decode_blocks
        ),
        (0, 10)
    );

    // The prompt is computed: the prefill leg is over, the decode leg waits for its first token.
    let leg = plan.prefill.expect("a leg").reservation;
    fleet.router.first_token(at_ms(20), leg);
    assert_eq!(
        fleet.router.load(target(11)).decode_blocks,
        0,
        "not for a moment"
    );
    fleet.router.done(at_ms(20), leg);
    assert_eq!(fleet.router.load(target(11)), TargetLoad::default());
    fleet.router.first_token(at_ms(30), plan.reservation);
    assert_eq!(
        fleet.router.load(target(1)),
        TargetLoad {
            decode_sequences: 1,
            ..decode
        }
    );
    fleet.router.done(at_ms(90), plan.reservation);
    assert_eq!(fleet.router.load(target(1)), TargetLoad::default());
    assert_eq!(fleet.router.open_reservations(), 0);
}

#[test]
#[contract("DY25")]
fn a_workers_speed_is_learned_only_from_prompts_that_it_computes() {
    let fleet = pools(1, 1);
    let before = fleet.router.rates(WorkerId(1));
    for n in 0..30u32 {
        let start = at_ms(u64::from(n) * 1_000);
        let plan = fleet.plan(start, &test_request(tokens(n + 1, 100)));
        let leg = plan.prefill.expect("a leg").reservation;
        fleet
            .router
            .first_token(start + std::time::Duration::from_millis(900), leg);
        fleet
            .router
            .done(start + std::time::Duration::from_millis(900), leg);
        fleet.router.first_token(
            start + std::time::Duration::from_millis(950),
            plan.reservation,
        );
        fleet.router.done(
            start + std::time::Duration::from_millis(990),
            plan.reservation,
        );
    }
    assert_eq!(fleet.router.rates(WorkerId(1)).samples, before.samples);
    assert_eq!(fleet.router.rates(WorkerId(11)).samples, 30);
}

#[test]
#[contract("V40")]
fn a_decode_worker_computes_an_uncached_rest_up_to_the_threshold() {
    let mut fleet = pools(1, 1);
    fleet.stored(1, &tokens(1, 8), Tier::Device);
    let prompt = test_request(tokens(1, 10));
    for (tokens, reason) in [
        (0, None),
        (31, None),
        (32, Some(PrefillSkip::UnderThreshold)),
    ] {
        threshold(&mut fleet, tokens);
        assert_eq!(
            skipped(&fleet.preview(NOW, &prompt).expect("a decision")),
            reason,
            "{tokens}"
        );
    }
    let plan = fleet.plan(NOW, &prompt);
    assert!(plan.prefill.is_none());
    assert_eq!(plan.decision.winner.reserved.prefill_tokens, 32);
    assert_eq!(fleet.router.load(target(1)).queued_prefill_tokens, 32);
    assert_eq!(fleet.router.load(target(11)), TargetLoad::default());
}

#[test]
#[contract("V40")]
fn without_a_threshold_even_a_fully_cached_prompt_has_a_prefill_leg() {
    let fleet = pools(1, 1);
    fleet.stored(1, &tokens(1, 10), Tier::Device);
    assert_eq!(leg(&fleet.plan(NOW, &test_request(tokens(1, 10)))), 11);
}

#[test]
#[contract("DY26")]
fn an_empty_prefill_pool_leaves_all_work_to_the_decode_worker_and_is_recorded() {
    let mut fleet = pools(1, 0);
    let out = ExcludedTarget {
        target: target(11),
        name: "w11".into(),
        reason: ExcludeReason::Busy,
    };
    fleet.pool.as_mut().expect("a pool").excluded = vec![out];
    let plan = fleet.plan(NOW, &test_request(tokens(1, 10)));
    assert!(plan.prefill.is_none());
    assert_eq!(skipped(&plan.decision), Some(PrefillSkip::NoPrefillWorker));
    assert_eq!(
        plan.decision.excluded[0].reason,
        ExcludeReason::Busy,
        "and the reasons of exclusion"
    );
    assert_eq!(fleet.router.load(target(1)).queued_prefill_tokens, 160);
}

#[test]
fn a_worker_requested_by_name_is_pinned_in_its_own_pool() {
    let mut fleet = pools(2, 2);
    threshold(&mut fleet, u32::MAX);
    let pinned = |worker| {
        let mut request = test_request(tokens(1, 10));
        request.pin = Some(Pin {
            worker: WorkerId(worker),
            rank: Some(DpRank(0)),
        });
        request
    };
    assert_eq!(fleet.plan(NOW, &pinned(2)).decode.target, target(2));
    let plan = fleet.plan(NOW, &pinned(12));
    assert_eq!(leg(&plan), 12, "whatever the threshold");
    assert!([target(1), target(2)].contains(&plan.decode.target));
    assert!(matches!(
        fleet.dispatch(NOW, &pinned(13)),
        routing::Dispatch::Refused(_)
    ));
}

#[test]
fn both_workers_get_speculative_entries_for_the_prompt() {
    let fleet = pools(2, 2);
    let first = fleet.plan(NOW, &test_request(tokens(1, 10)));
    let again = fleet.plan(NOW, &test_request(tokens(1, 10)));
    assert_eq!((again.decode, leg(&again)), (first.decode, leg(&first)));
    assert_eq!(again.decision.winner.predicted_cached_tokens, 9 * 16);
    assert_eq!(
        again.prefill.expect("a leg").predicted_cached_tokens,
        9 * 16
    );
}

#[test]
fn a_withdrawn_plan_leaves_no_speculative_entries_and_no_failure() {
    let fleet = pools(1, 1);
    let plan = fleet.plan(NOW, &test_request(tokens(1, 10)));
    fleet.router.withdraw(NOW, plan.reservation);
    fleet.router.withdraw(NOW, plan.reservation);
    fleet
        .router
        .failed(NOW, plan.prefill.expect("a leg").reservation);
    let after = fleet
        .preview(NOW, &test_request(tokens(1, 10)))
        .expect("a decision");
    assert_eq!(
        (
            after.winner.predicted_cached_tokens,
            fleet.router.open_reservations()
        ),
        (0, 0)
    );
}

#[test]
fn a_preview_names_the_prefill_worker_and_changes_nothing() {
    let fleet = pools(2, 2);
    fleet.stored(12, &tokens(1, 10), Tier::Device);
    let prompt = test_request(tokens(1, 10));
    let preview = fleet.preview(NOW, &prompt).expect("a decision");
    assert_eq!(
        (
            fleet.router.open_reservations(),
            fleet.router.load(target(12))
        ),
        (0, TargetLoad::default())
    );
    let plan = fleet.plan(NOW, &prompt);
    assert_eq!(preview.prefill, plan.decision.prefill);
    assert_eq!(preview.winner.reserved, plan.decision.winner.reserved);
}

#[test]
fn potential_loads_cover_both_pools_and_count_the_prompt_once() {
    let mut fleet = pools(1, 1);
    let prompt = test_request(tokens(1, 10));
    let loads = |fleet: &TestFleet| -> Vec<_> {
        let loads = fleet.potential_loads(NOW, &prompt);
        loads
            .iter()
            .map(|load| (load.target, load.prefill_tokens, load.decode_blocks))
            .collect()
    };
    assert_eq!(loads(&fleet), [(target(1), 0, 10), (target(11), 160, 0)]);
    threshold(&mut fleet, 160);
    assert_eq!(
        loads(&fleet),
        [(target(1), 160, 10), (target(11), 160, 0)],
        "the load with the request"
    );
}

/// One step of an open request.
#[derive(Clone, Copy, Debug)]
enum PoolStep {
    Request {
        topic: u32,
        blocks: u32,
        streamed: bool,
        threshold: u32,
    },
    Computed(usize),
    FirstToken(usize),
    PrefillFailed(usize),
    Over(usize),
    Failed(usize),
    Tick,
    Forget(u32),
}

fn step() -> impl Strategy<Value = PoolStep> {
    let at = || 0usize..32;
    prop_oneof![
        4 => (1u32..4, 1u32..30, any::<bool>(), prop_oneof![Just(0u32), 1u32..400])
            .prop_map(|(topic, blocks, streamed, threshold)| PoolStep::Request { topic, blocks, streamed, threshold }),
        2 => at().prop_map(PoolStep::Computed),
        2 => at().prop_map(PoolStep::FirstToken),
        1 => at().prop_map(PoolStep::PrefillFailed),
        2 => at().prop_map(PoolStep::Over),
        1 => at().prop_map(PoolStep::Failed),
        1 => Just(PoolStep::Tick),
        1 => prop_oneof![1u32..3, 11u32..13].prop_map(PoolStep::Forget),
    ]
}

proptest! {
    #[test]
    #[contract("DY25", "DY26")]
    fn any_order_of_steps_frees_all_load_exactly_once(steps in prop::collection::vec(step(), 0..120)) {
        let mut fleet = pools(2, 2);
        let mut dice = TestRandom(steps.len() as u64);
        let mut open: Vec<Plan> = Vec::new();
        let mut legs = 0;
        for (n, step) in steps.into_iter().enumerate() {
            let now = at_ms(n as u64 * 7);
            let some = |open: &mut Vec<Plan>, at: usize| (!open.is_empty()).then(|| at % open.len());
            match step {
                PoolStep::Request { topic, blocks, streamed, threshold: tokens_at_most } => {
                    threshold(&mut fleet, tokens_at_most);
                    let mut prompt = test_request(tokens(topic, blocks));
                    prompt.answer = if streamed { ReplyMode::Streamed } else { ReplyMode::Whole };
                    prompt.random = dice.roll();
                    let plan = fleet.plan(now, &prompt);
                    legs += usize::from(plan.prefill.is_some());
                    open.push(plan);
                }
                PoolStep::Computed(at) => if let Some(at) = some(&mut open, at) && let Some(leg) = open[at].prefill.take() {
                    fleet.router.first_token(now, leg.reservation);
                    fleet.router.done(now, leg.reservation);
                    legs -= 1;
                },
                PoolStep::FirstToken(at) => if let Some(at) = some(&mut open, at) {
                    fleet.router.first_token(now, open[at].reservation);
                },
                PoolStep::PrefillFailed(at) => if let Some(at) = some(&mut open, at) {
                    let plan = open.swap_remove(at);
                    fleet.router.withdraw(now, plan.reservation);
                    if let Some(leg) = plan.prefill {
                        fleet.router.failed(now, leg.reservation);
                        legs -= 1;
                    }
                },
                PoolStep::Over(at) | PoolStep::Failed(at) => if let Some(at) = some(&mut open, at) {
                    let plan = open.swap_remove(at);
                    if let Some(leg) = plan.prefill {
                        fleet.router.done(now, leg.reservation);
                        legs -= 1;
                    }
                    match step {
                        PoolStep::Failed(_) => drop(fleet.router.failed(now, plan.reservation)),
                        _ => drop(fleet.router.done(now, plan.reservation)),
                    }
                    fleet.router.done(now, plan.reservation);
                },
                PoolStep::Tick => drop(fleet.router.tick(now)),
                PoolStep::Forget(worker) => fleet.router.forget(WorkerId(worker)),
            }
            prop_assert_eq!(fleet.router.open_reservations(), open.len() + legs);
            for worker in [11, 12] {
                prop_assert_eq!(fleet.router.load(target(worker)).decode_blocks, 0);
            }
        }
        for plan in open {
            plan.prefill.into_iter().for_each(|leg| drop(fleet.router.done(at_ms(9_000), leg.reservation)));
            fleet.router.done(at_ms(9_000), plan.reservation);
        }
        prop_assert_eq!(fleet.router.open_reservations(), 0);
        for worker in [1, 2, 11, 12] {
            prop_assert_eq!(fleet.router.load(target(worker)), TargetLoad::default());
        }
    }
}
