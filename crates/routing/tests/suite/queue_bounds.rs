//! Bounds on the work of one call, and independence of the models' queues.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use contract_id::contract;
use kv_blocks::{Moment, Tier, WorkerId};
use proptest::prelude::*;
use routing::{
    Candidate, Dispatch, ExcludeReason, ExcludedTarget, Pin, Policy, QueueLimit, QueueSettings,
    ReleasedRequest, ReplyMode, Router, RoutingSettings, Ticket, WaitBudget, WaitReason,
};

use crate::fleet::{
    TestFleet, TestRequest, TestTenant, at_ms, candidate, target, tenant, test_request, tokens,
};

const PATIENT: WaitBudget = WaitBudget {
    limit: Duration::from_secs(30),
    waited: Duration::ZERO,
    bytes: 100,
};

/// More requests than any call may release; the exact number is internal to the router.
const MANY: usize = 16;

fn may_wait(topic: u32, blocks: u32) -> TestRequest {
    TestRequest {
        wait_budget: Some(PATIENT),
        ..test_request(tokens(topic, blocks))
    }
}

fn limited(topic: u32, blocks: u32, limit: Duration) -> TestRequest {
    TestRequest {
        wait_budget: Some(WaitBudget { limit, ..PATIENT }),
        ..test_request(tokens(topic, blocks))
    }
}

fn queued(dispatch: Dispatch) -> Ticket {
    match dispatch {
        Dispatch::Queued(ticket) => ticket,
        other => panic!("expected a ticket, got {other:?}"),
    }
}

fn tickets(released: &[ReleasedRequest]) -> Vec<Ticket> {
    released.iter().map(|released| released.ticket).collect()
}

/// Calls until nothing is left to do at `now`; the number of calls is bounded, so that calls
/// without effect cannot loop for ever.
fn release_all(router: &Router, now: Moment) -> Vec<ReleasedRequest> {
    let mut all = Vec::new();
    for _ in 0..2_000 {
        all.extend(router.take_released(now));
        if router.next_release(now).is_none_or(|then| then > now) {
            return all;
        }
    }
    panic!(
        "2,000 calls and there is still something to do: {} released",
        all.len()
    );
}

/// Gives each worker of `candidates` more queued prefill than a further request may start behind.
fn saturate(fleet: &mut TestFleet, candidates: &[Candidate], now: Moment, blocks: u32) {
    for (topic, candidate) in (1_000u32..).zip(candidates) {
        fleet.candidates = vec![candidate.clone()];
        fleet.plan(now, &test_request(tokens(topic % 4_000, blocks)));
    }
    fleet.candidates = candidates.to_vec();
}

#[test]
#[contract("F79")]
fn one_call_releases_a_few_requests_and_reports_that_more_wait() {
    let fleet = TestFleet::new(1, RoutingSettings::default());
    fleet.plan(at_ms(0), &may_wait(1, 52_500));
    let waiting: Vec<_> = (0..200)
        .map(|i| queued(fleet.dispatch(at_ms(1 + i), &may_wait(2, 10))))
        .collect();
    let now = at_ms(30_500);
    let first = fleet.router.take_released(now);
    assert!(
        (1..=MANY).contains(&first.len()),
        "{} were released in one call",
        first.len()
    );
    assert!(
        fleet
            .router
            .next_release(now)
            .expect("the others are overdue")
            <= now,
        "more can be done at once"
    );
    let mut order = tickets(&first);
    order.extend(tickets(&release_all(&fleet.router, now)));
    assert_eq!(
        order, waiting,
        "all of them, in the order in which they were due"
    );
    assert_eq!(fleet.router.queued_requests(), 0);
}

#[test]
fn one_event_of_a_target_releases_a_few_requests_at_most() {
    let fleet = TestFleet::new(1, RoutingSettings::default());
    let long = fleet.plan(at_ms(0), &may_wait(1, 52_500)).reservation;
    // Prompts at almost no cost: all of them may start at once.
    for i in 0..200 {
        queued(fleet.dispatch(at_ms(1 + i), &may_wait(2, 0)));
    }
    let first = fleet.router.done(at_ms(300), long);
    assert!(
        (1..=MANY).contains(&first.len()),
        "{} were released in one call",
        first.len()
    );
    assert_eq!(
        first.len() + release_all(&fleet.router, at_ms(300)).len(),
        200
    );
}

#[test]
#[contract("F79")]
fn requests_that_wait_for_a_busy_worker_keep_no_later_one_from_a_free_worker() {
    let fleet = TestFleet::new(2, RoutingSettings::default());
    fleet.stored(1, &tokens(1, 400), Tier::Device);
    let long = [1, 2].map(|worker| {
        let pin = Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        });
        let request = test_request(tokens(10 + worker, 200));
        fleet.plan(at_ms(0), &TestRequest { pin, ..request })
    });
    // To compute their prompts on the other worker takes longer than all that they wait for.
    let warm: Vec<Ticket> = (0..12)
        .map(|_| queued(fleet.dispatch(at_ms(1), &may_wait(1, 400))))
        .collect();
    let cold = queued(fleet.dispatch(at_ms(2), &may_wait(2, 20)));
    let released = fleet.router.first_token(at_ms(50), long[1].reservation);
    assert_eq!(tickets(&released), [cold], "in one call");
    assert_eq!(released[0].plan.decode.target, target(2));
    assert_eq!(fleet.router.queued_requests(), warm.len());
    // The worker has a prompt to compute again: nothing is left to do until something changes.
    let next = fleet.router.next_release(at_ms(50));
    assert!(next.is_none_or(|then| then > at_ms(50)), "{next:?}");
    let released = fleet.router.first_token(at_ms(60), long[0].reservation);
    assert_eq!(tickets(&released)[..], warm[..released.len()]);
    assert!(!released.is_empty());
}

#[test]
#[contract("F79")]
fn a_worker_that_opens_with_time_while_a_pass_is_due_for_another_is_offered_too() {
    let fleet = TestFleet::new(2, RoutingSettings::default());
    let long = [(1, 100), (2, 200)].map(|(worker, blocks)| {
        fleet.stored(worker, &tokens(worker, 400), Tier::Device);
        let pin = Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        });
        let request = test_request(tokens(10 + worker, blocks));
        fleet.plan(at_ms(0), &TestRequest { pin, ..request })
    });
    // Each waits for the worker that has its beginning, and the one for the second is first.
    let urgent = routing::Overrides {
        priority: 1,
        ..routing::Overrides::default()
    };
    let second = TestRequest {
        overrides: urgent,
        ..may_wait(2, 700)
    };
    let second = queued(fleet.dispatch(at_ms(1), &second));
    let first = queued(fleet.dispatch(at_ms(1), &may_wait(1, 420)));
    // Before anything has looked at the time at which the backlog of the first worker is short, the
    // second one begins, and its request takes it.
    let now = at_ms(300);
    let mut released = fleet.router.first_token(now, long[1].reservation);
    released.extend(release_all(&fleet.router, now));
    let went: Vec<_> = (released.iter())
        .map(|released| (released.ticket, released.plan.decode.target))
        .collect();
    assert_eq!(went, [(second, target(2)), (first, target(1))]);
}

#[test]
#[contract("F79")]
fn a_request_of_an_idle_model_starts_at_once_while_others_wait_for_another_model() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    let saturated: Vec<_> = (1..=64).map(candidate).collect();
    saturate(&mut fleet, &saturated, at_ms(0), 200);
    for topic in 0..40 {
        queued(fleet.dispatch(at_ms(1), &may_wait(10 + topic, 50)));
    }
    fleet.candidates = vec![candidate(65)];
    assert_eq!(fleet.goes_to(at_ms(2), &may_wait(1, 100)), 65);
    assert_eq!(fleet.router.queued_requests(), 40);
}

#[test]
fn overlapping_sets_of_targets_have_separate_queues() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    let both: Vec<_> = (1..=2).map(candidate).collect();
    fleet.candidates = vec![both[0].clone()];
    fleet.plan(at_ms(0), &may_wait(1, 1_000));
    // An adapter that only the first worker has.
    let adapter: Vec<_> = (0..300)
        .map(|i| queued(fleet.dispatch(at_ms(1), &may_wait(2 + i, 10))))
        .collect();
    fleet.candidates = both;
    assert_eq!(
        fleet.goes_to(at_ms(2), &may_wait(1, 10)),
        2,
        "the base model is served by another worker as well"
    );
    assert_eq!(fleet.router.queued_requests(), adapter.len());
}

#[test]
fn an_overdue_request_starts_in_time_at_any_queue_position() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    let candidates: Vec<_> = (1..=64).map(candidate).collect();
    saturate(&mut fleet, &candidates, at_ms(0), 3_000);
    let minute = Duration::from_secs(60);
    for topic in 0..39 {
        queued(fleet.dispatch(at_ms(1), &limited(10 + topic, 5, minute)));
    }
    let due = queued(fleet.dispatch(at_ms(1), &limited(100, 50, Duration::from_secs(5))));
    let then = fleet
        .router
        .next_release(at_ms(2))
        .expect("a request waits");
    assert_eq!(then, at_ms(5_001));
    assert_eq!(tickets(&release_all(&fleet.router, then)), [due]);
    assert_eq!(fleet.router.queued_requests(), 39);
}

#[test]
fn overdue_requests_start_in_order_of_deadline_not_of_arrival() {
    let fleet = TestFleet::new(1, RoutingSettings::default());
    fleet.plan(at_ms(0), &may_wait(1, 52_500));
    let wait = |i: u64| limited(2, 10, Duration::from_secs(40 - i));
    let mut waiting: Vec<_> = (0..30)
        .map(|i| queued(fleet.dispatch(at_ms(1), &wait(i))))
        .collect();
    waiting.reverse();
    assert_eq!(tickets(&release_all(&fleet.router, at_ms(45_000))), waiting);
}

#[test]
fn targets_that_no_waiting_request_can_use_do_not_wake_the_queue() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    fleet.candidates = vec![candidate(1)];
    fleet.plan(at_ms(0), &may_wait(1, 400));
    queued(fleet.dispatch(at_ms(1), &may_wait(2, 10)));
    let own = fleet
        .router
        .next_release(at_ms(1))
        .expect("the backlog shrinks with time");
    // Another model's worker is free much sooner, and a third one is idle.
    fleet.candidates = vec![candidate(2)];
    fleet.plan(at_ms(1), &may_wait(3, 60));
    fleet.candidates = vec![candidate(3)];
    let idle = fleet.plan(at_ms(1), &may_wait(4, 1)).reservation;
    assert!(fleet.router.done(at_ms(1), idle).is_empty());
    assert_eq!(fleet.router.next_release(at_ms(2)), Some(own));
}

#[test]
fn candidates_of_queued_requests_are_shared_and_count_towards_the_bytes() {
    let max_bytes = 4 << 20;
    let queue = QueueSettings {
        max_bytes,
        ..QueueSettings::default()
    };
    let mut fleet = TestFleet::new(
        0,
        RoutingSettings {
            queue,
            ..RoutingSettings::default()
        },
    );
    let candidates: Vec<_> = (1..=1_000).map(candidate).collect();
    saturate(&mut fleet, &candidates, at_ms(0), 50);
    // All requests share one list: it is stored once.
    for topic in 0..200 {
        queued(fleet.dispatch(at_ms(1), &may_wait(1 + topic, 20)));
    }
    let shared = fleet.router.queued_requests();
    assert_eq!(shared, 200);
    // Each request has its own salt and so its own list: the lists fill the queue.
    for salt in 0..200 {
        for candidate in &mut fleet.candidates {
            candidate.namespace.salt = Some(format!("salt {salt}").into());
        }
        match fleet.dispatch(at_ms(2), &may_wait(1, 20)) {
            Dispatch::Queued(_) => {}
            Dispatch::Refused(refusal) => {
                assert_eq!(refusal.queue_full, Some(QueueLimit::Router));
                assert!(
                    fleet.router.queued_requests() - shared < 40,
                    "{} lists of 1,000 in 4 MiB",
                    fleet.router.queued_requests() - shared
                );
                return;
            }
            Dispatch::Plan(_) => panic!("all are busy"),
        }
    }
    panic!("200 lists of 1,000 candidates fit into {max_bytes} bytes");
}

const MIB: u64 = 1 << 20;

/// A fleet of one, busy for two minutes, whose queue may have 8 MiB.
fn busy_with_8_mib() -> TestFleet {
    let queue = QueueSettings {
        max_bytes: 8 * MIB,
        ..QueueSettings::default()
    };
    let settings = RoutingSettings {
        queue,
        ..RoutingSettings::default()
    };
    let fleet = TestFleet::new(1, settings);
    fleet.plan(at_ms(0), &may_wait(1, 52_500));
    fleet
}

/// A request of a tenant whose caller retains this many bytes for it.
fn of_tenant(tenant: &TestTenant, bytes: u64) -> TestRequest {
    TestRequest {
        wait_budget: Some(WaitBudget { bytes, ..PATIENT }),
        tenant: Some(tenant.clone()),
        ..test_request(tokens(2, 10))
    }
}

/// A tenant that shares the queue with others.
fn one_of_several(name: &str) -> TestTenant {
    TestTenant {
        is_alone: false,
        ..tenant(name)
    }
}

/// Queues requests with bodies of somewhat less than 1 MiB until a limit keeps one out.
fn fill(fleet: &TestFleet, tenant: &TestTenant) -> (Vec<Ticket>, Option<QueueLimit>) {
    let mut waiting = Vec::new();
    loop {
        // Besides its body a request takes a few KiB.
        match fleet.dispatch(at_ms(1), &of_tenant(tenant, MIB - MIB / 32)) {
            Dispatch::Queued(ticket) => waiting.push(ticket),
            Dispatch::Refused(refusal) => return (waiting, refusal.queue_full),
            Dispatch::Plan(_) => panic!("the worker is busy"),
        }
    }
}

#[test]
#[contract("V32")]
fn a_tenant_fills_the_bytes_of_the_queue_only_where_there_is_no_other() {
    let (waiting, limit) = fill(&busy_with_8_mib(), &tenant("alone"));
    assert_eq!((waiting.len(), limit), (8, Some(QueueLimit::Router)));
    let fleet = busy_with_8_mib();
    for (name, requests, limit) in [
        ("one", 4, QueueLimit::TenantBytes),
        ("other", 4, QueueLimit::TenantBytes),
        ("third", 0, QueueLimit::Router),
    ] {
        let (waiting, reached) = fill(&fleet, &one_of_several(name));
        assert_eq!((waiting.len(), reached), (requests, Some(limit)), "{name}");
    }
}

#[test]
#[contract("V32")]
fn the_bytes_of_a_tenant_count_once_and_until_its_request_leaves_the_queue() {
    let mut fleet = busy_with_8_mib();
    let (one, other) = (one_of_several("one"), one_of_several("other"));
    let (waiting, _) = fill(&fleet, &one);
    // Other candidates are no other bytes.
    let request = of_tenant(&one, MIB - MIB / 32);
    let known = fleet.candidates.clone();
    for changed in [vec![candidate(1), candidate(2)], vec![], known] {
        for ticket in &waiting {
            replace(&mut fleet, at_ms(2), *ticket, &request, &changed);
        }
    }
    assert_eq!(fill(&fleet, &one).0.len(), 0);
    assert_eq!(fill(&fleet, &other).0.len(), 4);
    for (left, ticket) in waiting.iter().enumerate() {
        assert!(fleet.router.cancel(*ticket));
        assert_eq!(fill(&fleet, &one).0.len(), 1, "after {left} others");
    }
}

#[test]
fn lists_of_workers_take_bytes_of_the_queue_and_none_of_a_tenants_part() {
    let mut fleet = busy_with_8_mib();
    let one = one_of_several("one");
    let request = of_tenant(&one, MIB - MIB / 32);
    for _ in 0..3 {
        queued(fleet.dispatch(at_ms(1), &request));
    }
    // A new list, larger than what the fourth body leaves of the part.
    let excluded = (2..20_002).map(|worker| ExcludedTarget {
        target: target(worker),
        name: "w".into(),
        reason: ExcludeReason::Draining,
    });
    fleet.excluded = excluded.collect();
    queued(fleet.dispatch(at_ms(1), &request));
    assert_eq!(fill(&fleet, &one).0.len(), 0);
    assert_eq!(fill(&fleet, &one_of_several("other")).0.len(), 3);
}

#[test]
fn a_request_that_is_larger_than_its_tenants_part_waits_alone() {
    let fleet = busy_with_8_mib();
    let (one, other) = (one_of_several("one"), one_of_several("other"));
    let large = queued(fleet.dispatch(at_ms(1), &of_tenant(&one, 6 * MIB)));
    assert_eq!(fill(&fleet, &one).0.len(), 0);
    assert_eq!(fill(&fleet, &other).0.len(), 2);
    assert!(fleet.router.cancel(large));
    assert_eq!(fill(&fleet, &one).0.len(), 4);
}

#[test]
fn a_saturated_model_does_not_delay_another_when_both_can_start() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    let mut release = Vec::new();
    for worker in 1..=2 {
        fleet.candidates = vec![candidate(worker)];
        release.push(fleet.plan(at_ms(0), &may_wait(worker, 1_000)).reservation);
        let count = if worker == 1 { 500 } else { 1 };
        for i in 0..count {
            queued(fleet.dispatch(at_ms(1), &may_wait(10 + worker, 10 + i % 20)));
        }
    }
    let mut went: Vec<ReleasedRequest> = fleet.router.done(at_ms(2), release[0]);
    went.extend(fleet.router.done(at_ms(2), release[1]));
    went.extend(release_all(&fleet.router, at_ms(2)));
    assert!(
        went.iter()
            .any(|released| released.plan.decode.target == target(2))
    );
}

/// The fleet has changed: `candidates` are now eligible for the request.
fn replace(
    fleet: &mut TestFleet,
    now: Moment,
    ticket: Ticket,
    request: &TestRequest,
    candidates: &[Candidate],
) {
    fleet.candidates = candidates.to_vec();
    assert!(
        fleet.with_job(request, |job| fleet
            .router
            .replace_candidates(now, ticket, job)),
        "it is held"
    );
}

#[test]
fn a_changed_fleet_keeps_every_queue_position_and_touches_no_other_model() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    let urgent = |topic, blocks, priority| {
        let overrides = routing::Overrides {
            priority,
            ..routing::Overrides::default()
        };
        TestRequest {
            overrides,
            ..may_wait(topic, blocks)
        }
    };
    fleet.candidates = vec![candidate(9)];
    fleet.plan(at_ms(0), &may_wait(1, 2_000));
    let other = queued(fleet.dispatch(at_ms(1), &may_wait(2, 10)));
    fleet.candidates = vec![candidate(1)];
    fleet.plan(at_ms(0), &may_wait(1, 2_000));
    // In the expected order of release, which differs from the orders of arrival and of change.
    let requests = [
        urgent(3, 60, 1),
        urgent(4, 30, 0),
        urgent(5, 50, 0),
        urgent(6, 20, -1),
    ];
    let mut waiting: Vec<(usize, Ticket)> = [2, 3, 0, 1]
        .map(|i: usize| (i, queued(fleet.dispatch(at_ms(2 + i as u64), &requests[i]))))
        .to_vec();
    let next = fleet.router.next_release(at_ms(10));
    // Another worker joins: it is idle.
    let both = [candidate(1), candidate(2)];
    for (ms, (i, ticket)) in (100..).zip([waiting[1], waiting[0], waiting[3]]) {
        replace(&mut fleet, at_ms(ms), ticket, &requests[i], &both);
        assert!(
            release_all(&fleet.router, at_ms(ms)).is_empty(),
            "others of them may still come"
        );
        assert_eq!(
            fleet.router.next_release(at_ms(ms)),
            Some(at_ms(350)),
            "{next:?}"
        );
    }
    // The last one has moved: there is nothing more to wait for.
    let (last, ticket) = waiting[2];
    let mut now = at_ms(103);
    replace(&mut fleet, now, ticket, &requests[last], &both);
    waiting.sort_unstable();
    let mut order = Vec::new();
    let mut released = VecDeque::from(release_all(&fleet.router, now));
    while let Some(next) = released.pop_front() {
        assert_eq!(next.plan.decode.target, target(2));
        order.push(next.ticket);
        now = now + Duration::from_millis(1);
        released.extend(fleet.router.first_token(now, next.plan.reservation));
        released.extend(fleet.router.done(now, next.plan.reservation));
    }
    assert_eq!(
        order,
        waiting
            .iter()
            .map(|(_, ticket)| *ticket)
            .collect::<Vec<_>>()
    );
    assert_eq!(fleet.router.queued_requests(), 1);
    assert!(fleet.router.cancel(other));
}

#[test]
fn a_request_that_stays_with_the_old_targets_delays_those_that_moved_by_a_quarter_of_a_second() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    fleet.candidates = vec![candidate(1)];
    fleet.plan(at_ms(0), &may_wait(1, 2_000));
    let moves = queued(fleet.dispatch(at_ms(1), &may_wait(2, 10)));
    let stays = queued(fleet.dispatch(at_ms(2), &may_wait(3, 10)));
    let both = [candidate(1), candidate(2)];
    replace(&mut fleet, at_ms(100), moves, &may_wait(2, 10), &both);
    assert!(release_all(&fleet.router, at_ms(349)).is_empty());
    let released = release_all(&fleet.router, at_ms(350));
    assert_eq!(tickets(&released), [moves]);
    assert!(fleet.router.cancel(stays));
}

#[test]
fn a_request_without_an_eligible_target_keeps_its_position_until_one_appears() {
    let mut fleet = TestFleet::new(0, RoutingSettings::default());
    let long = test_request(tokens(1, 40));
    let waits = TestRequest {
        wait_budget: Some(PATIENT),
        ..long
    };
    let ticket = fleet
        .with_job(&waits, |job| {
            fleet.router.enqueue_without_target(at_ms(0), job)
        })
        .expect("there is room");
    assert_eq!(fleet.router.wait_reason(ticket), Some(WaitReason::NoWorker));
    assert!(
        release_all(&fleet.router, at_ms(60_000)).is_empty(),
        "no target can take it"
    );
    replace(&mut fleet, at_ms(61_000), ticket, &waits, &[candidate(1)]);
    let released = release_all(&fleet.router, at_ms(61_000));
    assert_eq!(
        (tickets(&released), released[0].waited),
        (vec![ticket], Duration::from_secs(61))
    );
}

/// Sets the share of the cache in use of a fleet of one worker, with 100 blocks in total.
fn used(fleet: &mut TestFleet, ratio: f64) {
    fleet.busy_threshold = Some(0.4);
    fleet.candidates = vec![Candidate {
        usage: Some(ratio),
        total_blocks: Some(100),
        ..candidate(1)
    }];
}

#[test]
#[contract("DY12")]
fn requests_that_wait_for_kv_space_are_released_in_order_and_only_as_space_allows() {
    for policy in [Policy::Warm, Policy::LeastLoaded, Policy::RoundRobin] {
        let mut fleet = TestFleet::with(1, policy);
        used(&mut fleet, 0.9);
        let short = |topic| TestRequest {
            answer: ReplyMode::Whole,
            ..may_wait(topic, 10)
        };
        let waiting: Vec<_> = (0..20u32)
            .map(|i| queued(fleet.dispatch(at_ms(i.into()), &short(10 + i))))
            .collect();
        assert_eq!(fleet.router.wait_reason(waiting[0]), Some(WaitReason::Busy));
        assert!(release_all(&fleet.router, at_ms(40)).is_empty());
        fleet
            .router
            .observe_usage(target(1), at_ms(100), 0.25, Some(100));
        let mut went = release_all(&fleet.router, at_ms(100));
        for ms in 101..1_000 {
            went.extend(release_all(&fleet.router, at_ms(ms)));
        }
        // 10 blocks each: the third request raises the share to 0.55, above 0.4.
        assert_eq!(tickets(&went), waiting[..2], "{policy}");
        used(&mut fleet, 0.25);
        queued(fleet.dispatch(at_ms(1_000), &short(99)));
        let after = fleet.router.done(at_ms(1_001), went[0].plan.reservation);
        assert_eq!(
            tickets(&after),
            [waiting[2]],
            "one ends and makes room for the next one: {policy}"
        );
        fleet
            .router
            .observe_usage(target(1), at_ms(2_000), 0.1, Some(100));
        assert!(
            tickets(&release_all(&fleet.router, at_ms(2_000))).starts_with(&[waiting[3]]),
            "{policy}"
        );
    }
}

#[test]
fn an_overdue_request_does_not_start_above_the_busy_threshold_and_nothing_spins() {
    let mut fleet = TestFleet::with(1, Policy::Warm);
    used(&mut fleet, 0.9);
    let ticket = queued(fleet.dispatch(at_ms(0), &may_wait(1, 10)));
    assert!(release_all(&fleet.router, at_ms(31_000)).is_empty());
    assert_eq!(fleet.router.next_release(at_ms(31_000)), None);
    assert!(fleet.router.cancel(ticket));
    assert_eq!(fleet.router.next_release(at_ms(31_000)), None);
}

#[derive(Clone, Debug)]
enum BoundStep {
    Request {
        set: usize,
        blocks: u32,
        priority: i32,
        limit_s: u64,
    },
    Done(usize),
    GiveUp(usize),
    Replace(usize, usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = BoundStep> {
    prop_oneof![
        5 => (0usize..4, 0u32..60, -1i32..2, 1u64..40)
            .prop_map(|(set, blocks, priority, limit_s)| BoundStep::Request { set, blocks, priority, limit_s }),
        2 => (0usize..60).prop_map(BoundStep::Done),
        1 => (0usize..60).prop_map(BoundStep::GiveUp),
        1 => (0usize..60, 0usize..5).prop_map(|(which, set)| BoundStep::Replace(which, set)),
        1 => (1u64..3_000).prop_map(BoundStep::Wait),
    ]
}

proptest! {
    #[test]
    fn every_ticket_leaves_once_without_spinning_and_none_is_left(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        // The last set is empty: no target is eligible for a while.
        let sets: [Vec<Candidate>; 5] =
            [vec![1], vec![2, 3], vec![3], vec![1, 2, 3, 4], vec![]].map(|ids| ids.into_iter().map(candidate).collect());
        let mut fleet = TestFleet::new(4, RoutingSettings::default());
        let mut open = Vec::new();
        let mut waiting: BTreeMap<Ticket, TestRequest> = BTreeMap::new();
        let mut now = at_ms(0);
        let take = |released: Vec<ReleasedRequest>, waiting: &mut BTreeMap<Ticket, TestRequest>, open: &mut Vec<_>| {
            for released in released {
                assert!(waiting.remove(&released.ticket).is_some(), "a ticket leaves once");
                open.push(released.plan.reservation);
            }
        };
        for step in &steps {
            now = now + Duration::from_millis(3);
            match step {
                BoundStep::Request { set, blocks, priority, limit_s } => {
                    let overrides = routing::Overrides { priority: *priority, ..routing::Overrides::default() };
                    let request = TestRequest { overrides, ..limited(*blocks, *blocks, Duration::from_secs(*limit_s)) };
                    fleet.candidates = sets[*set].clone();
                    match fleet.dispatch(now, &request) {
                        Dispatch::Plan(plan) => open.push(plan.reservation),
                        Dispatch::Queued(ticket) => drop(waiting.insert(ticket, request)),
                        Dispatch::Refused(refusal) => panic!("{refusal:?}"),
                    }
                }
                BoundStep::Done(i) if !open.is_empty() => {
                    let reservation = open.swap_remove(i % open.len());
                    take(fleet.router.done(now, reservation), &mut waiting, &mut open);
                }
                BoundStep::GiveUp(i) if !waiting.is_empty() => {
                    let ticket = *waiting.keys().nth(i % waiting.len()).expect("one of them");
                    assert!(fleet.router.cancel(ticket) && waiting.remove(&ticket).is_some());
                }
                BoundStep::Replace(i, set) if !waiting.is_empty() => {
                    let (ticket, request) = waiting.iter().nth(i % waiting.len()).expect("one of them");
                    let (ticket, request) = (*ticket, request.clone());
                    replace(&mut fleet, now, ticket, &request, &sets[*set]);
                }
                BoundStep::Wait(ms) => now = now + Duration::from_millis(*ms),
                _ => {}
            }
            take(release_all(&fleet.router, now), &mut waiting, &mut open);
            prop_assert_eq!(fleet.router.queued_requests(), waiting.len());
        }
        // Every request has an eligible target again: each starts at its deadline at the latest.
        for (ticket, request) in waiting.clone() {
            replace(&mut fleet, now, ticket, &request, &sets[3]);
        }
        now = now + Duration::from_secs(41);
        take(release_all(&fleet.router, now), &mut waiting, &mut open);
        prop_assert_eq!((fleet.router.queued_requests(), waiting.len()), (0, 0));
    }
}
