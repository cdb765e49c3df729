//! Load is counted at the decision and freed exactly once.

use kv_blocks::WorkerId;
use proptest::prelude::*;
use routing::{
    Affinity, Dispatch, Pin, Policy, ReplyMode, ReservationId, Router, RoutingSection,
    RoutingSettings, TargetLoad, WaitBudget,
};

use crate::fleet::{TestFleet, TestRequest, at_ms, target, test_request, tokens, with_prefix};

const PATIENT: WaitBudget = WaitBudget {
    limit: std::time::Duration::from_secs(30),
    waited: std::time::Duration::ZERO,
    bytes: 0,
};

fn assert_idle(fleet: &TestFleet) {
    assert_eq!(fleet.router.open_reservations(), 0);
    for candidate in &fleet.candidates {
        assert_eq!(fleet.router.load(candidate.target), TargetLoad::default());
    }
}

#[test]
fn a_request_counts_as_prefill_then_as_decode_then_not_at_all() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let id = fleet
        .plan(at_ms(0), &test_request(tokens(1, 10)))
        .reservation;
    let load = |in_flight, queued_prefill_tokens, decode_sequences, decode_blocks| TargetLoad {
        in_flight,
        queued_prefill_tokens,
        decode_sequences,
        decode_blocks,
        ..TargetLoad::default()
    };
    assert_eq!(fleet.router.load(target(1)), load(1, 160, 0, 10));
    fleet.router.first_token(at_ms(30), id);
    fleet.router.first_token(at_ms(31), id);
    assert_eq!(fleet.router.load(target(1)), load(1, 0, 1, 10));
    fleet.router.done(at_ms(90), id);
    fleet.router.done(at_ms(91), id);
    fleet.router.first_token(at_ms(92), id);
    assert_idle(&fleet);
}

#[test]
fn the_prefill_of_a_non_streaming_request_leaves_the_queue_after_its_estimated_time() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let whole = |seed| TestRequest {
        answer: ReplyMode::Whole,
        ..test_request(tokens(seed, 70))
    };
    let first = fleet.plan(at_ms(0), &whole(1)).reservation;
    let second = fleet.plan(at_ms(0), &whole(2)).reservation;
    // 1,120 tokens each at the prior of 7,000 tokens a second: 160 ms.
    fleet.router.tick(at_ms(150));
    assert_eq!(fleet.router.load(target(1)).queued_prefill_tokens, 2 * 1120);
    fleet.router.tick(at_ms(170));
    assert_eq!(fleet.router.load(target(1)).queued_prefill_tokens, 1120);
    fleet.router.tick(at_ms(330));
    let load = fleet.router.load(target(1));
    assert_eq!((load.queued_prefill_tokens, load.decode_sequences), (0, 2));
    // It is no sample of the worker's speed.
    assert_eq!(fleet.router.rates(WorkerId(1)).samples, 0);
    for id in [first, second] {
        fleet.router.done(at_ms(400), id);
    }
    assert_idle(&fleet);
}

/// Without this, requests wait for seconds at a worker that answers whole replies at once.
#[test]
fn a_whole_reply_that_is_earlier_than_its_estimated_prefill_shows_a_faster_worker() {
    let fleet = TestFleet::with(1, Policy::Warm);
    for n in 0..20 {
        let request = TestRequest {
            answer: ReplyMode::Whole,
            ..test_request(tokens(n, 70))
        };
        // 1,120 tokens: 160 ms at the prior.
        let id = fleet.plan(at_ms(u64::from(n) * 100), &request).reservation;
        let complete = at_ms(u64::from(n) * 100 + 20);
        fleet.router.done(complete, id);
    }
    let rates = fleet.router.rates(WorkerId(1));
    assert!(
        rates.learned && rates.prefill_tokens_per_s > 40_000.0,
        "{rates:?}"
    );
    assert_idle(&fleet);
}

#[test]
fn a_whole_reply_that_is_later_than_its_estimated_prefill_shows_nothing() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let request = TestRequest {
        answer: ReplyMode::Whole,
        ..test_request(tokens(1, 70))
    };
    let id = fleet.plan(at_ms(0), &request).reservation;
    fleet.router.tick(at_ms(170));
    fleet.router.done(at_ms(5_000), id);
    assert_eq!(fleet.router.rates(WorkerId(1)).samples, 0);
    assert_idle(&fleet);
}

#[test]
fn an_unreported_first_token_does_not_hold_back_later_prompts() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let request = |answer, seed| {
        fleet
            .plan(
                at_ms(0),
                &TestRequest {
                    answer,
                    ..test_request(tokens(seed, 70))
                },
            )
            .reservation
    };
    // 160 ms each, as above. The first request never reports its first token.
    let ids = [
        ReplyMode::Elsewhere,
        ReplyMode::Whole,
        ReplyMode::Whole,
        ReplyMode::Streamed,
        ReplyMode::Whole,
    ]
    .into_iter()
    .zip(1..);
    let ids: Vec<_> = ids.map(|(answer, seed)| request(answer, seed)).collect();
    for (ms, queued) in [
        (310, 5),
        (330, 4),
        (470, 4),
        (490, 3),
        (790, 3),
        (810, 2),
        (60_000, 2),
    ] {
        fleet.router.tick(at_ms(ms));
        assert_eq!(
            fleet.router.load(target(1)).queued_prefill_tokens,
            queued * 1120,
            "after {ms} ms"
        );
    }
    for id in ids {
        fleet.router.done(at_ms(60_000), id);
    }
    assert_idle(&fleet);
}

#[test]
fn a_first_token_reported_over_the_api_moves_load_and_is_no_speed_sample() {
    let fleet = TestFleet::with(1, Policy::Warm);
    for n in 0..40 {
        let id = fleet
            .plan(
                at_ms(n),
                &TestRequest {
                    answer: ReplyMode::Elsewhere,
                    ..test_request(tokens(1, 70))
                },
            )
            .reservation;
        fleet.router.first_token(at_ms(n + 60_000), id);
        let load = fleet.router.load(target(1));
        assert_eq!((load.queued_prefill_tokens, load.decode_sequences), (0, 1));
        fleet.router.done(at_ms(n + 60_000), id);
    }
    assert_eq!(fleet.router.rates(WorkerId(1)).samples, 0);
    assert_idle(&fleet);
}

#[test]
fn a_shared_prefix_counts_once_until_its_last_request_ends() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let mut fork = tokens(1, 10);
    fork.truncate(6 * 16);
    fork.extend(tokens(2, 4));
    let first = fleet.plan(at_ms(0), &test_request(tokens(1, 10)));
    let second = fleet.plan(at_ms(0), &test_request(fork));
    assert_eq!(first.decision.winner.reserved.decode_blocks, 10);
    assert_eq!(second.decision.winner.reserved.decode_blocks, 4);
    assert_eq!(fleet.router.load(target(1)).decode_blocks, 14);
    fleet.router.done(at_ms(5), first.reservation);
    assert_eq!(fleet.router.load(target(1)).decode_blocks, 10);
    fleet.router.done(at_ms(5), second.reservation);
    assert_idle(&fleet);
}

#[test]
fn a_partial_block_is_counted_per_request() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let prompt = tokens(1, 3)[..40].to_vec();
    fleet.plan(at_ms(0), &test_request(prompt.clone()));
    fleet.plan(at_ms(0), &test_request(prompt));
    assert_eq!(fleet.router.load(target(1)).decode_blocks, 2 + 1 + 1);
}

#[test]
fn equal_tokens_under_two_adapters_are_two_sets_of_blocks() {
    let mut fleet = TestFleet::with(1, Policy::Warm);
    fleet.plan(at_ms(0), &test_request(tokens(1, 10)));
    fleet.candidates[0].namespace.lora = Some("a".into());
    fleet.plan(at_ms(0), &test_request(tokens(1, 10)));
    assert_eq!(fleet.router.load(target(1)).decode_blocks, 20);
}

#[test]
fn untracked_blocks_are_not_counted() {
    let fleet = TestFleet::new(
        1,
        RoutingSettings {
            section: RoutingSection {
                track_active_blocks: false,
                ..RoutingSection::default()
            },
            ..RoutingSettings::default()
        },
    );
    let id = fleet
        .plan(at_ms(0), &test_request(tokens(1, 10)))
        .reservation;
    assert_eq!(fleet.router.load(target(1)).decode_blocks, 0);
    fleet.router.done(at_ms(0), id);
    assert_idle(&fleet);
}

#[test]
fn a_queue_shrinks_as_time_passes_but_not_past_its_head() {
    let fleet = TestFleet::with(1, Policy::Warm);
    for topic in 0..2 {
        fleet.plan(at_ms(0), &test_request(tokens(topic, 700 * 10 / 16)));
    }
    let queue_at = |ms| {
        let plan = fleet.plan(at_ms(ms), &test_request(tokens(9, 1)));
        fleet.router.done(at_ms(ms), plan.reservation);
        plan.decision.candidates[0].terms.get("queue_ms").unwrap()
    };
    // Two prefills of one second each at the prior's rate.
    assert!((queue_at(0) - 2000.0).abs() < 10.0);
    assert!(
        (queue_at(10_000) - 1050.0).abs() < 10.0,
        "the first one has not answered yet"
    );
}

#[test]
fn a_removed_worker_keeps_its_open_load_and_nothing_else() {
    let fleet = TestFleet::with(2, Policy::RoundRobin);
    let first = fleet.plan(at_ms(0), &test_request(tokens(1, 10)));
    fleet.router.forget(WorkerId(1));
    fleet.router.forget(WorkerId(2));
    assert_eq!(fleet.router.load(target(1)).in_flight, 1);
    fleet.router.first_token(at_ms(1), first.reservation);
    fleet.router.done(at_ms(2), first.reservation);
    assert_idle(&fleet);
}

#[test]
fn unknown_reservation_ids_are_ignored() {
    let fleet = TestFleet::with(1, Policy::Warm);
    fleet.router.done(at_ms(0), ReservationId(99));
    fleet.router.first_token(at_ms(0), ReservationId(0));
    assert!(fleet.router.tick(at_ms(0)).is_empty());
    assert_idle(&fleet);
}

#[derive(Clone, Debug)]
enum LoadStep {
    Decide {
        topic: u32,
        blocks: u32,
        partial: u32,
        policy: Policy,
        pin: Option<u32>,
    },
    FirstToken(usize),
    Done(usize),
    Failed(usize),
    Forget(u32),
}

fn step() -> impl Strategy<Value = LoadStep> {
    prop_oneof![
        (
            0u32..4,
            0u32..30,
            0u32..16,
            prop::sample::select(&Policy::ALL[..]),
            prop::option::of(1u32..5)
        )
            .prop_map(|(topic, blocks, partial, policy, pin)| LoadStep::Decide {
                topic,
                blocks,
                partial,
                policy,
                pin
            }),
        (0usize..40).prop_map(LoadStep::FirstToken),
        (0usize..40).prop_map(LoadStep::Done),
        (0usize..40).prop_map(LoadStep::Failed),
        (1u32..4).prop_map(LoadStep::Forget),
    ]
}

/// Plays `steps` a millisecond apart; returns the targets chosen and the reservations made, in
/// order.
fn play(fleet: &TestFleet, steps: &[LoadStep]) -> Vec<(u32, ReservationId, String)> {
    let mut made = Vec::new();
    for (ms, step) in steps.iter().enumerate() {
        let now = at_ms(ms as u64);
        let known = |i: usize, made: &[(u32, ReservationId, String)]| {
            made.get(i % made.len().max(1))
                .map_or(ReservationId(1 << 40), |(_, id, _)| *id)
        };
        match step {
            LoadStep::Decide {
                topic,
                blocks,
                partial,
                policy,
                pin,
            } => {
                let mut prompt = tokens(*topic, *blocks);
                prompt.extend(0..*partial);
                let pin = pin.map(|worker| Pin {
                    worker: WorkerId(worker),
                    rank: None,
                });
                let affinity = if *topic == 0 {
                    Affinity::default()
                } else {
                    with_prefix(u64::from(*topic) << 62).affinity
                };
                let request = TestRequest {
                    policy: Some(*policy),
                    pin,
                    random: ms as u64,
                    affinity,
                    ..test_request(prompt)
                };
                if let Dispatch::Plan(plan) = fleet.dispatch(now, &request) {
                    let reasons = format!("{:?}", plan.decision);
                    made.push((plan.decode.target.worker.0, plan.reservation, reasons));
                }
            }
            LoadStep::FirstToken(i) => drop(fleet.router.first_token(now, known(*i, &made))),
            LoadStep::Done(i) => drop(fleet.router.done(now, known(*i, &made))),
            LoadStep::Failed(i) => drop(fleet.router.failed(now, known(*i, &made))),
            LoadStep::Forget(worker) => fleet.router.forget(WorkerId(*worker)),
        }
    }
    made
}

proptest! {
    #[test]
    fn any_interleaving_returns_every_load_to_exactly_zero(steps in prop::collection::vec(step(), 0..120)) {
        let fleet = TestFleet::with(3, Policy::Warm);
        let made = play(&fleet, &steps);
        let in_flight: u32 = fleet.candidates.iter().map(|c| fleet.router.load(c.target).in_flight).sum();
        prop_assert_eq!(in_flight as usize, fleet.router.open_reservations());
        for (_, id, _) in made {
            fleet.router.done(at_ms(1_000_000), id);
        }
        assert_idle(&fleet);
    }

    #[test]
    fn equal_histories_give_equal_decisions(steps in prop::collection::vec(step(), 0..60)) {
        let (one, other) = (TestFleet::with(3, Policy::Warm), TestFleet::with(3, Policy::Warm));
        prop_assert_eq!(play(&one, &steps), play(&other, &steps));
    }

    #[test]
    fn warm_tokens_are_disjoint_whole_blocks_and_bound_the_prediction(
        steps in prop::collection::vec(step(), 1..60),
        blocks in 0u32..30,
        partial in 0u32..16,
    ) {
        let fleet = TestFleet::with(3, Policy::KvAware);
        fleet.stored(1, &tokens(1, 7), kv_blocks::Tier::Host);
        fleet.stored(2, &tokens(1, 3), kv_blocks::Tier::Device);
        play(&fleet, &steps);
        let mut prompt = tokens(1, blocks);
        prompt.extend(0..partial);
        let length = u32::try_from(prompt.len()).unwrap();
        for row in fleet.plan(at_ms(60), &test_request(prompt)).decision.candidates {
            let warm = row.warm_tokens.total();
            prop_assert_eq!(warm % 16, 0);
            prop_assert!(warm <= length);
            prop_assert_eq!(row.predicted_cached_tokens, warm.min(length.saturating_sub(1) / 16 * 16));
            prop_assert_eq!(row.uncached_tokens, length - row.predicted_cached_tokens);
        }
    }
}

#[test]
fn the_router_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Router>();
}

#[test]
fn a_million_unfinished_requests_leave_no_state_behind() {
    let fleet = TestFleet::with(4, Policy::Warm);
    let prompts: Vec<TestRequest> = (0..8)
        .map(|topic| TestRequest {
            wait_budget: Some(PATIENT),
            ..test_request(tokens(topic, 20))
        })
        .collect();
    let (mut open, mut queued) = (
        std::collections::VecDeque::new(),
        std::collections::VecDeque::new(),
    );
    for n in 0..1_000_000u64 {
        let now = at_ms(n / 100);
        let mut released = match fleet.dispatch(
            now,
            &TestRequest {
                random: n,
                ..prompts[(n % 8) as usize].clone()
            },
        ) {
            Dispatch::Plan(plan) => {
                open.push_back(plan.reservation);
                Vec::new()
            }
            Dispatch::Queued(ticket) => {
                queued.push_back(ticket);
                fleet.router.take_released(now)
            }
            Dispatch::Refused(refusal) => panic!("{refusal}"),
        };
        // The client disconnects: in the queue, before the send or the first token, or mid-stream.
        while queued.len() > 4 {
            queued.pop_front().map(|ticket| fleet.router.cancel(ticket));
        }
        while open.len() > 12
            && let Some(id) = open.pop_front()
        {
            if n % 4 == 3 {
                released.extend(fleet.router.first_token(now, id));
            }
            released.extend(match n % 4 {
                0 => fleet.router.withdraw(now, id),
                1 => fleet.router.failed(now, id),
                _ => fleet.router.done(now, id),
            });
        }
        open.extend(
            released
                .into_iter()
                .map(|released| released.plan.reservation),
        );
    }
    let end = at_ms(1_000_000);
    for ticket in queued {
        fleet.router.cancel(ticket);
    }
    while let Some(id) = open.pop_front() {
        open.extend(
            fleet
                .router
                .withdraw(end, id)
                .into_iter()
                .map(|released| released.plan.reservation),
        );
    }
    assert_eq!(fleet.router.queued_requests(), 0);
    assert_idle(&fleet);
}
