//! Requests that wait, their order of release, and that none is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kv_blocks::{Tier, WorkerId};
use proptest::prelude::*;
use routing::{
    Dispatch, Overrides, Pin, Policy, QueueSettings, ReleasedRequest, ReservationId,
    RoutingSettings, TargetLoad, Ticket, WaitBudget,
};

use crate::fleet::{TestFleet, TestRequest, at_ms, target, test_request, tokens};

const PATIENT: WaitBudget = WaitBudget {
    limit: Duration::from_secs(30),
    waited: Duration::ZERO,
    bytes: 100,
};

/// A request of `blocks` blocks that may wait. At the prior rate a block takes 16/7 ms.
fn may_wait(topic: u32, blocks: u32) -> TestRequest {
    TestRequest {
        wait_budget: Some(PATIENT),
        ..test_request(tokens(topic, blocks))
    }
}

fn with_queue(workers: u32, queue: QueueSettings) -> TestFleet {
    TestFleet::new(
        workers,
        RoutingSettings {
            queue,
            ..RoutingSettings::default()
        },
    )
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

/// A fleet of one whose worker has a long prompt to compute.
fn busy() -> (TestFleet, ReservationId) {
    let hold_above = Duration::from_millis(50);
    let fleet = with_queue(
        1,
        QueueSettings {
            hold_above,
            ageing: 0.2,
            ..QueueSettings::default()
        },
    );
    let long = fleet.plan(at_ms(0), &may_wait(1, 100)).reservation;
    (fleet, long)
}

#[test]
fn a_request_waits_while_its_target_has_too_much_prefill_and_starts_at_the_first_token() {
    let (fleet, long) = busy();
    let ticket = queued(fleet.dispatch(at_ms(1), &may_wait(2, 10)));
    assert_eq!(
        (
            fleet.router.queued_requests(),
            fleet.router.open_reservations()
        ),
        (1, 1)
    );
    assert!(fleet.router.take_released(at_ms(2)).is_empty());
    let released = fleet.router.first_token(at_ms(101), long);
    assert_eq!(tickets(&released), [ticket]);
    assert_eq!(released[0].waited, Duration::from_millis(100));
    assert_eq!(released[0].plan.decode.target, target(1));
    assert_eq!(
        (
            fleet.router.queued_requests(),
            fleet.router.open_reservations()
        ),
        (0, 2)
    );
}

#[test]
fn a_target_with_capacity_gets_a_request_at_once_and_busy_targets_are_waited_for() {
    let fleet = with_queue(2, QueueSettings::default());
    let mut bound = Vec::new();
    for topic in 1..=2 {
        bound.push(fleet.goes_to(at_ms(0), &may_wait(topic, 100)));
    }
    bound.sort_unstable();
    assert_eq!(bound, [1, 2]);
    queued(fleet.dispatch(at_ms(1), &may_wait(3, 100)));
}

#[test]
fn one_call_gives_each_worker_that_opened_a_request_and_leaves_the_others_waiting() {
    let fleet = with_queue(2, QueueSettings::default());
    for topic in 1..=2 {
        fleet.plan(at_ms(0), &may_wait(topic, 100));
    }
    let waiting: Vec<Ticket> = (3..=6)
        .map(|topic| queued(fleet.dispatch(at_ms(1), &may_wait(topic, 100))))
        .collect();
    // Both are nearly done by now: 229 ms were expected.
    let released = fleet.router.take_released(at_ms(300));
    assert_eq!(tickets(&released)[..], waiting[..2]);
    let mut targets: Vec<_> = released
        .iter()
        .map(|released| released.plan.decode.target)
        .collect();
    targets.sort_unstable();
    assert_eq!(targets, [target(1), target(2)]);
    assert!(fleet.router.take_released(at_ms(300)).is_empty());
    assert_eq!(fleet.router.queued_requests(), 2);
}

#[test]
fn a_request_that_may_not_wait_is_pinned_or_has_another_policy_starts_at_once() {
    let (fleet, _) = busy();
    fleet.plan(at_ms(1), &test_request(tokens(2, 10)));
    let pin = Some(Pin {
        worker: WorkerId(1),
        rank: None,
    });
    fleet.plan(
        at_ms(1),
        &TestRequest {
            pin,
            ..may_wait(3, 10)
        },
    );
    for policy in Policy::ALL
        .into_iter()
        .filter(|policy| *policy != Policy::Warm)
    {
        fleet.plan(
            at_ms(1),
            &TestRequest {
                policy: Some(policy),
                ..may_wait(4, 10)
            },
        );
    }
    let off = with_queue(
        1,
        QueueSettings {
            enabled: false,
            ..QueueSettings::default()
        },
    );
    (1..10).for_each(|topic| drop(off.plan(at_ms(0), &may_wait(topic, 100))));
    assert_eq!(
        (fleet.router.queued_requests(), off.router.queued_requests()),
        (0, 0)
    );
}

#[test]
fn the_shortest_uncached_prompt_goes_first_and_age_offsets_length() {
    let (fleet, long) = busy();
    let forty = queued(fleet.dispatch(at_ms(1), &may_wait(2, 40)));
    let thirty = queued(fleet.dispatch(at_ms(2), &may_wait(3, 30)));
    fleet.stored(1, &tokens(4, 60), Tier::Device);
    let cached = queued(fleet.dispatch(at_ms(3), &may_wait(4, 60)));
    // Its prefill is short enough for another request to start behind it.
    let released = fleet.router.first_token(at_ms(20), long);
    assert_eq!(tickets(&released), [cached, thirty]);
    let next = fleet
        .router
        .first_token(at_ms(30), released[0].plan.reservation);
    assert_eq!(tickets(&next), []);
    // 40 blocks are 91 ms, which a fifth of 500 ms offsets: it goes before a shorter, new one.
    let fresh = queued(fleet.dispatch(at_ms(500), &may_wait(5, 10)));
    let released = fleet
        .router
        .first_token(at_ms(501), released[1].plan.reservation);
    assert_eq!(tickets(&released)[0], forty);
    assert_ne!(tickets(&released)[0], fresh);
}

#[test]
fn a_higher_priority_goes_before_a_shorter_prompt() {
    let (fleet, long) = busy();
    let short = queued(fleet.dispatch(at_ms(1), &may_wait(2, 30)));
    let urgent = Overrides {
        priority: 1,
        ..Overrides::default()
    };
    let urgent = queued(fleet.dispatch(
        at_ms(2),
        &TestRequest {
            overrides: urgent,
            ..may_wait(3, 80)
        },
    ));
    let released = fleet.router.first_token(at_ms(20), long);
    assert_eq!(tickets(&released), [urgent]);
    let released = fleet
        .router
        .first_token(at_ms(30), released[0].plan.reservation);
    assert_eq!(tickets(&released), [short]);
}

#[test]
fn a_request_at_its_wait_limit_starts_regardless_of_queued_prefill() {
    let fleet = with_queue(1, QueueSettings::default());
    // Two minutes of work without any report.
    fleet.plan(at_ms(50_000), &may_wait(1, 52_500));
    let first = queued(fleet.dispatch(at_ms(50_001), &may_wait(2, 90)));
    let waited = WaitBudget {
        limit: Duration::from_secs(30),
        waited: Duration::from_secs(20),
        ..PATIENT
    };
    let again = queued(fleet.dispatch(
        at_ms(50_001),
        &TestRequest {
            wait_budget: Some(waited),
            ..may_wait(3, 90)
        },
    ));
    let fresh = queued(fleet.dispatch(at_ms(70_000), &may_wait(4, 10)));
    assert!(fleet.router.tick(at_ms(80_000)).is_empty());
    let then = fleet
        .router
        .next_release(at_ms(80_000))
        .expect("a request waits");
    assert_eq!(then, at_ms(80_001));
    let released = fleet.router.take_released(then);
    assert_eq!(tickets(&released), [first, again], "both are due");
    assert_eq!(
        released[1].waited,
        Duration::from_secs(50),
        "earlier waiting time counts"
    );
    assert!(fleet.router.cancel(fresh));
}

#[test]
fn a_request_with_a_shorter_wait_limit_starts_in_time_before_older_ones() {
    let fleet = with_queue(1, QueueSettings::default());
    fleet.plan(at_ms(0), &may_wait(1, 52_500));
    queued(fleet.dispatch(at_ms(1), &may_wait(2, 10)));
    let short = WaitBudget {
        limit: Duration::from_secs(5),
        ..PATIENT
    };
    let hurried = queued(fleet.dispatch(
        at_ms(2),
        &TestRequest {
            wait_budget: Some(short),
            ..may_wait(3, 10)
        },
    ));
    let then = fleet
        .router
        .next_release(at_ms(2))
        .expect("a request waits");
    assert_eq!(then, at_ms(5_002));
    assert_eq!(tickets(&fleet.router.take_released(then)), [hurried]);
}

#[test]
fn a_new_request_does_not_overtake_queued_ones_except_to_another_target() {
    let fleet = with_queue(2, QueueSettings::default());
    fleet.stored(1, &tokens(1, 400), Tier::Device);
    let pin = |worker| {
        Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        })
    };
    fleet.plan(
        at_ms(0),
        &TestRequest {
            pin: pin(1),
            ..may_wait(2, 100)
        },
    );
    // Its blocks are on the first worker: waiting costs far less than recomputing.
    queued(fleet.dispatch(at_ms(1), &may_wait(1, 400)));
    assert_eq!(fleet.goes_to(at_ms(2), &may_wait(3, 20)), 2);
    assert_eq!(fleet.router.queued_requests(), 1);
}

#[test]
fn the_queue_is_bounded_in_entries_and_bytes_and_rejects_the_excess() {
    let entries = with_queue(
        1,
        QueueSettings {
            max_entries: 2,
            ..QueueSettings::default()
        },
    );
    // Two requests fit, with the queue's overhead for each.
    let bytes = with_queue(
        1,
        QueueSettings {
            max_bytes: 2_500_000,
            ..QueueSettings::default()
        },
    );
    let large = |topic| TestRequest {
        wait_budget: Some(WaitBudget {
            bytes: 1_000_000,
            ..PATIENT
        }),
        ..may_wait(topic, 10)
    };
    for fleet in [&entries, &bytes] {
        fleet.plan(at_ms(0), &may_wait(1, 100));
        let first = queued(fleet.dispatch(at_ms(1), &large(2)));
        queued(fleet.dispatch(at_ms(1), &large(3)));
        let Dispatch::Refused(refusal) = fleet.dispatch(at_ms(1), &large(4)) else {
            panic!("there is no room")
        };
        assert!(refusal.queue_full.is_some() && refusal.excluded.is_empty());
        assert!(fleet.router.cancel(first) && !fleet.router.cancel(first));
        queued(fleet.dispatch(at_ms(1), &large(4)));
        assert_eq!(
            (
                fleet.router.queued_requests(),
                fleet.router.open_reservations()
            ),
            (2, 1)
        );
    }
}

#[test]
fn the_next_release_time_is_known_without_events() {
    let (fleet, _) = busy();
    assert_eq!(
        fleet.router.next_release(at_ms(0)),
        None,
        "no request waits"
    );
    let ticket = queued(fleet.dispatch(at_ms(1), &may_wait(2, 10)));
    // 100 blocks take 228.6 ms; 50 ms before their end the next request may start.
    let then = fleet
        .router
        .next_release(at_ms(1))
        .expect("the backlog shrinks with time");
    assert!(
        (178.0..180.0).contains(&then.ms_since(at_ms(0))),
        "{then:?}"
    );
    assert!(fleet.router.take_released(at_ms(170)).is_empty());
    assert_eq!(tickets(&fleet.router.take_released(then)), [ticket]);
}

#[test]
fn a_target_is_credited_with_the_prompts_of_its_open_requests() {
    let fleet = with_queue(
        2,
        QueueSettings {
            enabled: false,
            ..QueueSettings::default()
        },
    );
    let worker = fleet.goes_to(at_ms(0), &may_wait(1, 50));
    // Long after the speculative entries have expired, and before any event of the engine.
    let later = fleet.plan(at_ms(60_000), &may_wait(1, 50));
    assert_eq!(later.decode.target, target(worker));
    assert_eq!(later.decision.winner.predicted_cached_tokens, 49 * 16);
}

#[derive(Clone, Debug)]
enum QueueStep {
    Request {
        topic: u32,
        blocks: u32,
        priority: i32,
    },
    FirstToken(usize),
    Done(usize),
    Failed(usize),
    Withdraw(usize),
    Tick,
}

fn step() -> impl Strategy<Value = QueueStep> {
    prop_oneof![
        4 => (1u32..6, 0u32..80, -1i32..2).prop_map(|(topic, blocks, priority)| QueueStep::Request { topic, blocks, priority }),
        2 => (0usize..60).prop_map(QueueStep::FirstToken),
        1 => (0usize..60).prop_map(QueueStep::Done),
        1 => (0usize..60).prop_map(QueueStep::Failed),
        1 => (0usize..60).prop_map(QueueStep::Withdraw),
        1 => Just(QueueStep::Tick),
    ]
}

#[derive(Default)]
struct QueueAccount {
    open: Vec<ReservationId>,
    waiting: Vec<Ticket>,
    /// How often each ticket was released.
    out: BTreeMap<Ticket, u32>,
    seen: BTreeSet<ReservationId>,
}

impl QueueAccount {
    fn take(&mut self, released: Vec<ReleasedRequest>) {
        for released in released {
            *self.out.entry(released.ticket).or_default() += 1;
            self.reserve(released.plan.reservation);
        }
    }

    fn reserve(&mut self, id: ReservationId) {
        assert!(self.seen.insert(id), "a reservation is issued once");
        self.open.push(id);
    }
}

proptest! {
    #[test]
    fn every_ticket_is_released_once_and_every_load_ends_at_exactly_zero(
        steps in prop::collection::vec(step(), 0..200),
        max_entries in 1usize..20,
    ) {
        let fleet = with_queue(3, QueueSettings { max_entries, ..QueueSettings::default() });
        let router = &fleet.router;
        let mut account = QueueAccount::default();
        let pick = |of: &[ReservationId], i: usize| of.get(i % of.len().max(1)).copied().unwrap_or(ReservationId(1 << 40));
        let mut now = at_ms(0);
        for (ms, step) in (0u64..).step_by(7).zip(&steps) {
            now = at_ms(ms);
            match step {
                QueueStep::Request { topic, blocks, priority } => {
                    let overrides = Overrides { priority: *priority, ..Overrides::default() };
                    match fleet.dispatch(now, &TestRequest { overrides, random: ms, ..may_wait(*topic, *blocks) }) {
                        Dispatch::Plan(plan) => account.reserve(plan.reservation),
                        Dispatch::Queued(ticket) => {
                            account.waiting.push(ticket);
                            account.take(router.take_released(now));
                        }
                        Dispatch::Refused(refusal) => {
                            prop_assert!(refusal.queue_full.is_some() && router.queued_requests() == max_entries);
                        }
                    }
                }
                QueueStep::FirstToken(i) => account.take(router.first_token(now, pick(&account.open, *i))),
                QueueStep::Done(i) => account.take(router.done(now, pick(&account.open, *i))),
                QueueStep::Failed(i) => account.take(router.failed(now, pick(&account.open, *i))),
                QueueStep::Withdraw(i) => {
                    if let Some(ticket) = account.waiting.get(i % account.waiting.len().max(1)).copied()
                        && router.cancel(ticket)
                    {
                        *account.out.entry(ticket).or_default() += 1;
                    }
                }
                QueueStep::Tick => account.take(router.tick(now)),
            }
            prop_assert!(router.queued_requests() <= max_entries);
        }
        // All requests end, and so does the wait of the queued ones.
        while let Some(id) = account.open.pop() {
            now = now + Duration::from_millis(1);
            account.take(router.done(now, id));
        }
        prop_assert_eq!(router.queued_requests(), 0);
        prop_assert_eq!(account.out.len(), account.waiting.len());
        prop_assert!(account.out.values().all(|times| *times == 1));
        prop_assert_eq!(router.open_reservations(), 0);
        for candidate in &fleet.candidates {
            prop_assert_eq!(router.load(candidate.target), TargetLoad::default());
        }
        let decision = fleet.preview(now, &may_wait(9, 10)).expect("a target is eligible");
        for row in &decision.candidates {
            prop_assert_eq!(row.terms.get("waiting_ms"), Some(0.0));
        }
    }
}
