//! Admission by the live set: who waits for room, who is let in, and that nobody waits for ever.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use kv_blocks::Tier;
use proptest::prelude::*;
use routing::{
    AdmissionMode, Dispatch, Plan, QueueLimit, QueueSettings, ReleasedRequest, ReservationId,
    RoutingSection, RoutingSettings, SessionKeys, SessionMode, SessionSection, Ticket, WaitBudget,
    WaitReason,
};

use crate::fleet::{
    TestFleet, TestRandom, TestRequest, TestTenant, at_ms, tenant, test_request, tokens,
};

const PATIENT: WaitBudget = WaitBudget {
    limit: Duration::from_secs(30),
    waited: Duration::ZERO,
    bytes: 100,
};

/// Blocks of a session's first prompt, 20,000 tokens: some 2.9 s of prefill at the prior rate.
const PROMPT: u32 = 1250;
/// A cache that has room for two sessions and not for three.
const CAPACITY: u32 = 3500;

fn may_wait(topic: u32, blocks: u32) -> TestRequest {
    TestRequest {
        wait_budget: Some(PATIENT),
        ..test_request(tokens(topic, blocks))
    }
}

fn fleet(workers: u32, admission: AdmissionMode, admission_wait: Duration) -> TestFleet {
    let section = RoutingSection {
        admission,
        admission_wait,
        ..RoutingSection::default()
    };
    let mut fleet = TestFleet::new(
        workers,
        RoutingSettings {
            section,
            ..RoutingSettings::default()
        },
    );
    for candidate in &mut fleet.candidates {
        candidate.total_blocks = Some(CAPACITY);
    }
    fleet
}

/// A fleet of one on which two sessions have had twelve turns each, one turn a second.
fn two_sessions() -> TestFleet {
    let fleet = fleet(1, AdmissionMode::LiveSet, Duration::from_secs(300));
    take_turns(&fleet);
    fleet
}

fn take_turns(fleet: &TestFleet) {
    for turn in 0..12 {
        for session in [1, 2] {
            let at = 1000 * u64::from(2 * turn + session - 1);
            let request = test_request(tokens(session, PROMPT + 4 * turn));
            let plan = fleet.plan(at_ms(at), &request);
            fleet.stored(1, &request.tokens, Tier::Device);
            fleet.router.done(at_ms(at + 500), plan.reservation);
        }
    }
}

/// The two sessions have one more turn each, so that no room becomes free. Returns what the ends of
/// the turns release.
fn turns_go_on(fleet: &TestFleet, ms: u64) -> Vec<ReleasedRequest> {
    let mut released = Vec::new();
    for session in [1, 2] {
        let turn = test_request(tokens(session, PROMPT + 60));
        let plan = fleet.plan(at_ms(ms), &turn);
        released.extend(fleet.router.done(at_ms(ms), plan.reservation));
    }
    released
}

/// The time after the turns of [`two_sessions`].
const AFTER_MS: u64 = 24_000;

fn queued(dispatch: Dispatch) -> Ticket {
    match dispatch {
        Dispatch::Queued(ticket) => ticket,
        other => panic!("expected a ticket, got {other:?}"),
    }
}

/// Queues a request as a caller does, which then asks for releases.
fn enqueue(fleet: &TestFleet, ms: u64, request: &TestRequest) -> Ticket {
    let ticket = queued(fleet.dispatch(at_ms(ms), request));
    assert!(released_at(fleet, ms).is_empty());
    ticket
}

/// Everything that may start at `ms`.
fn released_at(fleet: &TestFleet, ms: u64) -> Vec<ReleasedRequest> {
    let mut released = fleet.router.tick(at_ms(ms));
    while fleet.router.next_release(at_ms(ms)) == Some(at_ms(ms)) {
        released.extend(fleet.router.take_released(at_ms(ms)));
    }
    released
}

/// Ticks once a second until a request is released; returns it and the second.
fn next_released(fleet: &TestFleet, from_ms: u64) -> (u64, ReleasedRequest) {
    for ms in (from_ms..from_ms + 3_600_000).step_by(1000) {
        let mut released = released_at(fleet, ms);
        if let Some(first) = released.pop() {
            assert!(released.is_empty(), "one at a time");
            return (ms, first);
        }
    }
    panic!("nothing is released within an hour");
}

#[test]
fn a_cold_request_waits_for_room_and_a_warm_one_does_not() {
    let fleet = two_sessions();
    let cold = enqueue(&fleet, AFTER_MS, &may_wait(3, PROMPT));
    assert_eq!(fleet.router.wait_reason(cold), Some(WaitReason::Room));
    assert_eq!(fleet.router.requests_waiting_for_room(), 1);
    let warm = may_wait(1, PROMPT + 60);
    assert_eq!(fleet.goes_to(at_ms(AFTER_MS + 1), &warm), 1);
    // Less than two steps of prefill is not cold.
    let short = may_wait(4, 1024);
    let dispatch = fleet.dispatch(at_ms(AFTER_MS + 60_000), &short);
    let waits_for_room = match dispatch {
        Dispatch::Queued(ticket) => fleet.router.wait_reason(ticket) == Some(WaitReason::Room),
        _ => false,
    };
    assert!(!waits_for_room);
}

#[test]
fn without_admission_or_capacity_or_returning_sessions_nobody_waits_for_room() {
    let cold = may_wait(3, PROMPT);
    let off = two_sessions();
    off.router.reconfigure(RoutingSettings::default());
    assert_eq!(off.goes_to(at_ms(AFTER_MS), &cold), 1);

    let mut of_unknown_size = fleet(1, AdmissionMode::LiveSet, Duration::from_secs(300));
    of_unknown_size.candidates[0].total_blocks = None;
    take_turns(&of_unknown_size);
    assert_eq!(of_unknown_size.goes_to(at_ms(AFTER_MS), &cold), 1);

    let of_single_requests = fleet(1, AdmissionMode::LiveSet, Duration::from_secs(300));
    for topic in 0..30 {
        let at = 1000 * u64::from(topic);
        let plan = of_single_requests.plan(at_ms(at), &test_request(tokens(topic, PROMPT)));
        of_single_requests
            .router
            .done(at_ms(at + 500), plan.reservation);
    }
    assert_eq!(
        of_single_requests.goes_to(at_ms(30_000), &may_wait(40, PROMPT)),
        1
    );
}

#[test]
fn the_first_is_let_in_by_the_budget_and_the_next_when_there_is_room() {
    let fleet = two_sessions();
    let first = enqueue(&fleet, AFTER_MS, &may_wait(3, PROMPT));
    let (at, released) = next_released(&fleet, AFTER_MS + 1000);
    assert_eq!((at, released.ticket), (AFTER_MS + 1000, first));
    let wait = released.room.expect("it waited for room");
    assert_eq!((wait.capacity, wait.ahead), (u64::from(CAPACITY), 0));
    assert!(wait.live_blocks > 2 * u64::from(PROMPT), "{wait:?}");
    fleet.stored(1, &tokens(3, PROMPT), Tier::Device);
    fleet
        .router
        .done(at_ms(at + 1000), released.plan.reservation);
    let counts = fleet.router.admission_counts();
    assert_eq!((counts.budget, counts.room), (1, 0));

    // The budget has spent 2.9 s, which takes 29 s to earn; the sessions' blocks count for 12 s.
    let second = enqueue(&fleet, at + 1000, &may_wait(4, PROMPT));
    let (at, released) = next_released(&fleet, at + 2000);
    assert_eq!(released.ticket, second);
    assert!(at < AFTER_MS + 20_000, "{at}");
    let counts = fleet.router.admission_counts();
    assert_eq!((counts.budget, counts.room, counts.overdue), (1, 1, 0));
    assert_eq!(fleet.router.requests_waiting_for_room(), 0);
}

#[test]
fn the_report_names_who_waits_for_what_and_how_long() {
    let fleet = two_sessions();
    let first = enqueue(&fleet, AFTER_MS, &may_wait(3, PROMPT));
    let second = enqueue(&fleet, AFTER_MS, &may_wait(4, PROMPT));
    let report = fleet.router.admission_report(at_ms(AFTER_MS + 500), 10);
    assert!(report.enabled);
    assert_eq!(report.return_share, 1.0);
    assert_eq!(report.waiting_total, 2);
    assert_eq!(report.targets[0].capacity, Some(u64::from(CAPACITY)));
    let rows: Vec<_> = report
        .waiting
        .iter()
        .map(|row| {
            (
                row.ticket,
                &*row.worker,
                row.wait.ahead,
                row.wait.needed_blocks,
            )
        })
        .collect();
    let needed = u64::from(PROMPT);
    assert_eq!(rows, [(first, "w1", 0, needed), (second, "w1", 1, needed)]);
    let expected = report.waiting.iter().map(|row| row.wait.expected.as_secs());
    // The first is the next; the other waits for one prompt in an eighth of one worker's time.
    assert_eq!(expected.collect::<Vec<_>>(), [0, 22]);
    assert_eq!(report.waiting[0].waited, Duration::from_millis(500));
    assert_eq!(
        fleet
            .router
            .admission_report(at_ms(AFTER_MS), 1)
            .waiting
            .len(),
        1
    );
}

#[test]
fn a_request_that_even_the_most_lending_lets_in_too_late_is_refused_with_its_expected_wait() {
    let fleet = two_sessions();
    let with = |seconds| TestRequest {
        time_left: Some(Duration::from_secs(seconds)),
        ..may_wait(3, PROMPT)
    };
    for topic in 4..7 {
        enqueue(&fleet, AFTER_MS, &may_wait(topic, PROMPT));
    }
    // Three prompts at a quarter of one worker's time; its own takes 2.9 s.
    for (seconds, refused) in [(37, 1), (3, 2)] {
        let Dispatch::Refused(refusal) = fleet.dispatch(at_ms(AFTER_MS), &with(seconds)) else {
            panic!("expected a refusal");
        };
        let wait = refusal.no_room.expect("it has no room");
        assert_eq!((wait.ahead, wait.expected.as_secs()), (3, 34));
        assert_eq!(fleet.router.admission_counts().refused, refused);
    }
    assert_eq!(fleet.router.queued_requests(), 3);
    let ticket = queued(fleet.dispatch(at_ms(AFTER_MS), &with(45)));
    assert_eq!(fleet.router.wait_reason(ticket), Some(WaitReason::Room));
    assert!(fleet.router.cancel(ticket));
    assert_eq!(fleet.router.requests_waiting_for_room(), 3);
}

#[test]
fn a_request_that_the_longest_wait_lets_in_before_its_time_limit_is_not_refused() {
    let fleet = fleet(1, AdmissionMode::LiveSet, Duration::from_secs(1));
    take_turns(&fleet);
    for topic in 4..7 {
        enqueue(&fleet, AFTER_MS, &may_wait(topic, PROMPT));
    }
    // Three prompts take 34 s at a quarter of one worker's time; after four seconds nobody waits.
    let limited = TestRequest {
        time_left: Some(Duration::from_secs(20)),
        ..may_wait(3, PROMPT)
    };
    let ticket = queued(fleet.dispatch(at_ms(AFTER_MS), &limited));
    assert_eq!(fleet.router.wait_reason(ticket), Some(WaitReason::Room));
    assert_eq!(fleet.router.admission_counts().refused, 0);
}

/// The share of time that is lent grows with the requests that wait, up to a quarter: until then none
/// is too late, although the wait of the last one is always about the target wait.
#[test]
fn with_equal_limits_no_request_is_refused_before_a_quarter_of_the_time_is_lent() {
    let fleet = two_sessions();
    let with_limit = |topic| TestRequest {
        time_left: Some(Duration::from_secs(300)),
        ..may_wait(topic, PROMPT)
    };
    let waits = |topic: &u32| match fleet.dispatch(at_ms(AFTER_MS), &with_limit(*topic)) {
        Dispatch::Queued(_) => true,
        Dispatch::Refused(refusal) => {
            assert!(refusal.no_room.is_some());
            false
        }
        Dispatch::Plan(plan) => panic!("expected a wait, got {plan:?}"),
    };
    // 74 s of prompts of 2.9 s.
    let waiting = (3..100).take_while(waits).count();
    assert!((25..=27).contains(&waiting), "{waiting}");
}

#[test]
fn a_request_with_a_time_limit_is_let_in_while_its_reply_can_begin_before() {
    let fleet = two_sessions();
    let first = enqueue(&fleet, AFTER_MS, &may_wait(3, PROMPT));
    let limited = TestRequest {
        time_left: Some(Duration::from_secs(20)),
        ..may_wait(4, PROMPT)
    };
    let second = enqueue(&fleet, AFTER_MS, &limited);
    let mut order = Vec::new();
    for at in (AFTER_MS + 1000..AFTER_MS + 30_000).step_by(1000) {
        let mut released = turns_go_on(&fleet, at);
        released.extend(released_at(&fleet, at));
        for released in released {
            order.push((at, released.ticket));
            fleet.router.done(at_ms(at), released.plan.reservation);
        }
    }
    // The budget has nothing left for the second, which needs 2.9 s for its prompt and one more.
    assert_eq!(order, [(25_000, first), (41_000, second)]);
    let counts = fleet.router.admission_counts();
    assert_eq!((counts.budget, counts.overdue, counts.room), (1, 1, 0));
}

#[test]
fn requests_that_wait_for_room_have_three_quarters_of_each_limit() {
    let limited = |queue| {
        let fleet = two_sessions();
        let section = RoutingSection {
            admission: AdmissionMode::LiveSet,
            ..RoutingSection::default()
        };
        fleet.router.reconfigure(RoutingSettings {
            section,
            queue,
            ..RoutingSettings::default()
        });
        fleet
    };
    let usual = QueueSettings::default();
    let entries = QueueSettings {
        max_entries: 4,
        ..usual
    };
    // Each request takes somewhat more than 100,000 bytes.
    let bytes = QueueSettings {
        max_bytes: 500_000,
        ..usual
    };
    // A tenant that has others beside it has half of these.
    let double_bytes = QueueSettings {
        max_bytes: 1_000_000,
        ..usual
    };
    let limited_tenant = TestTenant {
        most_queued: Some(4),
        ..tenant("a")
    };
    let tenant_with_others = TestTenant {
        is_alone: false,
        ..tenant("a")
    };
    for (queue, tenant, limit) in [
        (entries, tenant("a"), QueueLimit::Router),
        (bytes, tenant("a"), QueueLimit::Router),
        (usual, limited_tenant, QueueLimit::Tenant),
        (double_bytes, tenant_with_others, QueueLimit::TenantBytes),
    ] {
        let fleet = limited(queue);
        let of = |topic, blocks| TestRequest {
            tenant: Some(tenant.clone()),
            ..may_wait(topic, blocks)
        };
        for topic in 3..6 {
            enqueue(&fleet, AFTER_MS, &of(topic, PROMPT));
        }
        let Dispatch::Refused(refusal) = fleet.dispatch(at_ms(AFTER_MS), &of(6, PROMPT)) else {
            panic!("expected a refusal");
        };
        assert_eq!(refusal.queue_full, Some(limit));
        // A warm one finds a place behind a prompt that is being computed.
        fleet.plan(at_ms(AFTER_MS), &test_request(tokens(7, 1000)));
        let warm = queued(fleet.dispatch(at_ms(AFTER_MS), &of(1, PROMPT + 48)));
        assert_eq!(fleet.router.wait_reason(warm), Some(WaitReason::Backlog));
    }
}

#[test]
fn who_loses_room_while_waiting_for_a_backlog_needs_a_place_among_those_that_wait_for_room() {
    let fleet = two_sessions();
    let section = RoutingSection {
        admission: AdmissionMode::LiveSet,
        ..RoutingSection::default()
    };
    let queue = QueueSettings {
        max_entries: 4,
        ..QueueSettings::default()
    };
    fleet.router.reconfigure(RoutingSettings {
        section,
        queue,
        ..RoutingSettings::default()
    });
    // A minute later nothing counts any more, and each of these would have room beside the first.
    let at = AFTER_MS + 60_000;
    let first = fleet.plan(at_ms(at), &test_request(tokens(20, PROMPT)));
    let tickets = [21, 22, 23, 24].map(|topic| enqueue(&fleet, at, &may_wait(topic, PROMPT)));
    assert_eq!(fleet.router.requests_waiting_for_room(), 0);
    let second = fleet.plan(at_ms(at), &test_request(tokens(25, PROMPT)));
    // Both prompts are computed.
    let at = at + 6000;
    for plan in [&first, &second] {
        let released = fleet.router.first_token(at_ms(at), plan.reservation);
        assert!(released.is_empty());
    }
    assert!(released_at(&fleet, at).is_empty());
    let reasons = tickets.map(|ticket| fleet.router.wait_reason(ticket));
    let for_room = reasons
        .iter()
        .filter(|reason| **reason == Some(WaitReason::Room));
    assert_eq!((for_room.count(), fleet.router.queued_requests()), (3, 4));
    // None of them is forgotten.
    let mut left = tickets.to_vec();
    for at in (at + 1000..at + 1_300_000).step_by(1000) {
        let mut released = released_at(&fleet, at);
        while let Some(next) = released.pop() {
            left.retain(|ticket| *ticket != next.ticket);
            released.extend(fleet.router.done(at_ms(at), next.plan.reservation));
        }
    }
    assert_eq!((left, fleet.router.queued_requests()), (vec![], 0));
}

#[test]
fn when_admission_is_switched_off_the_limit_of_a_wait_for_room_no_longer_counts() {
    let fleet = two_sessions();
    let ticket = enqueue(&fleet, AFTER_MS, &may_wait(3, PROMPT));
    // Minutes of work.
    for topic in 10..100 {
        fleet.plan(at_ms(AFTER_MS), &test_request(tokens(topic, 1000)));
    }
    fleet.router.reconfigure(RoutingSettings::default());
    assert!(released_at(&fleet, AFTER_MS + 1000).is_empty());
    assert_eq!(fleet.router.requests_waiting_for_room(), 0);
    assert_eq!(fleet.router.wait_reason(ticket), Some(WaitReason::Backlog));
    assert!(released_at(&fleet, AFTER_MS + 30_000).is_empty());
    let released = released_at(&fleet, AFTER_MS + 31_000);
    assert_eq!(released[0].ticket, ticket);
    assert_eq!(released.len(), 1);
}

#[test]
fn when_the_queue_is_switched_off_all_waits_for_room_end() {
    let fleet = two_sessions();
    for topic in 3..9 {
        enqueue(&fleet, AFTER_MS, &may_wait(topic, PROMPT));
    }
    let section = RoutingSection {
        admission: AdmissionMode::LiveSet,
        ..RoutingSection::default()
    };
    let queue = QueueSettings {
        enabled: false,
        ..QueueSettings::default()
    };
    fleet.router.reconfigure(RoutingSettings {
        section,
        queue,
        ..RoutingSettings::default()
    });
    released_at(&fleet, AFTER_MS + 1000);
    assert_eq!(fleet.router.requests_waiting_for_room(), 0);
    released_at(&fleet, AFTER_MS + 31_000);
    assert_eq!(fleet.router.queued_requests(), 0);
}

#[test]
fn a_request_that_may_not_wait_is_sent_at_once() {
    let fleet = two_sessions();
    assert_eq!(
        fleet.goes_to(at_ms(AFTER_MS), &test_request(tokens(3, PROMPT))),
        1
    );
}

/// A fleet with so many workers and this session mode.
fn fleet_with_sessions(workers: u32, mode: SessionMode) -> TestFleet {
    let fleet = fleet(workers, AdmissionMode::LiveSet, Duration::from_secs(300));
    fleet.router.reconfigure(RoutingSettings {
        section: RoutingSection {
            admission: AdmissionMode::LiveSet,
            session: SessionSection {
                mode,
                ..SessionSection::default()
            },
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    });
    fleet
}

/// A cold request of a session with a name.
fn in_session(topic: u32) -> TestRequest {
    TestRequest {
        session: Some(Arc::new(SessionKeys {
            name: Some(9),
            ..SessionKeys::default()
        })),
        ..may_wait(topic, PROMPT)
    }
}

/// The session has its first turn, with a short prompt that is no part of the next.
fn begin_session(fleet: &TestFleet, ms: u64) {
    let begin = TestRequest {
        tokens: tokens(8, 4),
        ..in_session(8)
    };
    let plan = fleet.plan(at_ms(ms), &begin);
    fleet.router.done(at_ms(ms), plan.reservation);
}

#[test]
fn under_hard_affinity_a_session_waits_for_its_own_worker_and_under_soft_it_takes_another() {
    for (mode, waits) in [(SessionMode::Hard, true), (SessionMode::Soft, false)] {
        let mut fleet = fleet_with_sessions(2, mode);
        let second = fleet.candidates.pop().expect("it has two workers");
        take_turns(&fleet);
        begin_session(&fleet, AFTER_MS);
        fleet.candidates.push(second);
        match fleet.dispatch(at_ms(AFTER_MS), &in_session(3)) {
            Dispatch::Queued(ticket) => {
                assert!(waits, "{mode:?}");
                let report = fleet.router.admission_report(at_ms(AFTER_MS), 10);
                assert_eq!(report.waiting[0].ticket, ticket);
                assert_eq!(report.waiting[0].wait.target.worker.0, 1);
                // The other worker, which is idle, lends it no time either.
                let (_, released) = next_released(&fleet, AFTER_MS);
                assert_eq!(released.plan.decode.target.worker.0, 1);
            }
            Dispatch::Plan(plan) => {
                assert!(!waits, "{mode:?}");
                assert_eq!(plan.decode.target.worker.0, 2);
            }
            Dispatch::Refused(refusal) => panic!("refused: {refusal:?}"),
        }
    }
}

#[test]
fn a_request_that_waits_for_one_worker_does_not_hold_up_the_time_of_others() {
    let mut fleet = fleet_with_sessions(2, SessionMode::Hard);
    let both = mem::take(&mut fleet.candidates);
    for turn in 0..12 {
        for (place, (worker, session)) in [(1, 1), (2, 5), (1, 2), (2, 6)].into_iter().enumerate() {
            let at = 1000 * (4 * u64::from(turn) + place as u64);
            fleet.candidates = vec![both[worker as usize - 1].clone()];
            let request = test_request(tokens(session, PROMPT + 4 * turn));
            let plan = fleet.plan(at_ms(at), &request);
            fleet.stored(worker, &request.tokens, Tier::Device);
            fleet.router.done(at_ms(at + 500), plan.reservation);
        }
    }
    fleet.candidates = vec![both[0].clone()];
    begin_session(&fleet, 48_000);
    let lent_to = enqueue(&fleet, 48_000, &may_wait(20, PROMPT));
    let (at, released) = next_released(&fleet, 49_000);
    assert_eq!((at, released.ticket), (49_000, lent_to));
    // The first worker has lent ahead; the session waits for it, and the other request need not.
    fleet.candidates = both;
    enqueue(&fleet, 49_000, &in_session(3));
    let other = enqueue(&fleet, 49_000, &may_wait(21, PROMPT));
    let (at, released) = next_released(&fleet, 50_000);
    assert_eq!((at, released.ticket), (50_000, other));
    assert_eq!(released.plan.decode.target.worker.0, 2);
}

#[test]
fn a_worker_lends_time_also_when_another_one_gets_a_request() {
    let mut fleet = fleet(2, AdmissionMode::LiveSet, Duration::from_secs(300));
    let second = fleet.candidates.pop().expect("it has two workers");
    take_turns(&fleet);
    let waits_for_room = enqueue(&fleet, AFTER_MS, &may_wait(3, PROMPT));
    fleet.candidates = vec![second];
    for topic in 10..20 {
        fleet.plan(at_ms(AFTER_MS), &test_request(tokens(topic, 1000)));
    }
    let waits_a_second = TestRequest {
        wait_budget: Some(WaitBudget {
            limit: Duration::from_secs(1),
            ..PATIENT
        }),
        ..may_wait(4, 10)
    };
    let is_due = enqueue(&fleet, AFTER_MS, &waits_a_second);
    let released = released_at(&fleet, AFTER_MS + 1000);
    let mut tickets: Vec<_> = released.iter().map(|released| released.ticket).collect();
    tickets.sort_unstable();
    assert_eq!(tickets, [waits_for_room, is_due]);
}

#[test]
fn tenants_take_turns_in_the_time_that_is_lent() {
    let fleet = two_sessions();
    let of = |name: &str, topic| TestRequest {
        tenant: Some(tenant(name)),
        ..may_wait(topic, PROMPT)
    };
    let first = enqueue(&fleet, AFTER_MS, &of("a", 11));
    let second = enqueue(&fleet, AFTER_MS, &of("a", 12));
    let others = enqueue(&fleet, AFTER_MS, &of("b", 13));
    let mut order = Vec::new();
    let mut at = AFTER_MS + 1000;
    while order.len() < 3 {
        let mut released = turns_go_on(&fleet, at);
        released.extend(released_at(&fleet, at));
        for released in released {
            order.push(released.ticket);
            let next = fleet.router.done(at_ms(at), released.plan.reservation);
            assert!(next.is_empty(), "one at a time");
        }
        at += 1000;
        assert!(at < 400_000, "{order:?}");
    }
    assert_eq!(order, [first, others, second]);
}

/// A request on a worker.
struct Running {
    /// The second at which it ends.
    until: u64,
    reservation: ReservationId,
    worker: u32,
    topic: u32,
    blocks: u32,
}

/// A fleet that gets cold prompts and returning sessions at random.
struct Traffic {
    fleet: TestFleet,
    random: TestRandom,
    topics: u32,
    /// Sessions with a finished turn, and their blocks.
    sessions: Vec<(u32, u32)>,
    running: Vec<Running>,
    /// Waiting requests, with the second of their arrival, topic and blocks.
    waiting: BTreeMap<Ticket, (u64, u32, u32)>,
    sent: usize,
    /// The longest wait in seconds.
    longest: u64,
}

impl Traffic {
    fn new(seed: u64, workers: u32, admission_wait: u64) -> Self {
        let wait = Duration::from_secs(admission_wait);
        Self {
            fleet: fleet(workers, AdmissionMode::LiveSet, wait),
            random: TestRandom(seed),
            topics: 0,
            sessions: Vec::new(),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            sent: 0,
            longest: 0,
        }
    }

    fn second(&mut self, now: u64, arrivals: usize) {
        let (ended, running): (Vec<Running>, Vec<Running>) = mem::take(&mut self.running)
            .into_iter()
            .partition(|running| running.until <= now);
        self.running = running;
        for ended in ended {
            let prompt = tokens(ended.topic, ended.blocks);
            self.fleet.stored(ended.worker, &prompt, Tier::Device);
            let released = self.fleet.router.done(at_ms(now * 1000), ended.reservation);
            self.start(now, released);
            self.sessions.push((ended.topic, ended.blocks));
        }
        for _ in 0..arrivals {
            self.arrive(now);
        }
        let released = released_at(&self.fleet, now * 1000);
        self.start(now, released);
    }

    fn arrive(&mut self, now: u64) {
        let (topic, blocks) = if self.sessions.is_empty() || self.random.below(3) == 0 {
            self.topics += 1;
            (self.topics, PROMPT)
        } else {
            let which = self.random.below(self.sessions.len());
            let (topic, blocks) = self.sessions.swap_remove(which);
            (topic, blocks + 4)
        };
        match self
            .fleet
            .dispatch(at_ms(now * 1000), &may_wait(topic, blocks))
        {
            Dispatch::Plan(plan) => self.send(now, &plan, (topic, blocks)),
            Dispatch::Queued(ticket) => {
                if self.fleet.router.wait_reason(ticket) == Some(WaitReason::Room) {
                    self.has_no_room(now, ticket, blocks);
                }
                self.waiting.insert(ticket, (now, topic, blocks));
            }
            Dispatch::Refused(refusal) => panic!("refused: {refusal:?}"),
        }
    }

    /// A request waits for room only if no worker has room for all of it.
    fn has_no_room(&self, now: u64, ticket: Ticket, blocks: u32) {
        let report = self.fleet.router.admission_report(at_ms(now * 1000), 1000);
        assert!(report.waiting.iter().any(|row| row.ticket == ticket));
        for target in &report.targets {
            let live = report.return_share * target.live_blocks as f64;
            // The prompt, and a reply of 200 tokens.
            let needed = f64::from(blocks) + 13.0;
            assert!(live + needed > 0.95 * f64::from(CAPACITY), "{target:?}");
        }
    }

    fn start(&mut self, now: u64, released: Vec<ReleasedRequest>) {
        for released in released {
            let waiting = self.waiting.remove(&released.ticket);
            let (since, topic, blocks) = waiting.expect("it waited");
            self.longest = self.longest.max(now - since);
            self.send(now, &released.plan, (topic, blocks));
        }
    }

    fn send(&mut self, now: u64, plan: &Plan, (topic, blocks): (u32, u32)) {
        self.sent += 1;
        self.running.push(Running {
            until: now + 3,
            reservation: plan.reservation,
            worker: plan.decode.target.worker.0,
            topic,
            blocks,
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// No request is lost, and none waits longer than four times the target wait.
    #[test]
    fn every_request_that_waits_is_let_in_within_the_bound(
        seed in any::<u64>(),
        workers in 1u32..4,
        arrivals in 1usize..3,
    ) {
        let mut traffic = Traffic::new(seed, workers, 10);
        for now in 0..60 {
            traffic.second(now, arrivals);
        }
        for now in 60..120 {
            traffic.second(now, 0);
        }
        prop_assert_eq!(traffic.sent, 60 * arrivals);
        prop_assert!(traffic.waiting.is_empty() && traffic.running.is_empty());
        prop_assert!(traffic.longest <= 41, "{} s", traffic.longest);
        prop_assert_eq!(traffic.fleet.router.open_reservations(), 0);
        prop_assert_eq!(traffic.fleet.router.requests_waiting_for_room(), 0);
    }
}
