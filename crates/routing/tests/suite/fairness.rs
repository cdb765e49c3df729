//! Tenants that wait for the same workers share them by weight, in milliseconds of work.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use contract_id::contract;
use kv_blocks::{Moment, Tier, WorkerId};
use proptest::prelude::*;
use routing::{
    Dispatch, Overrides, Pin, Plan, QueueLimit, QueueSettings, ReleasedRequest, ReportedWork,
    ReservationId, RoutingSettings, Ticket, WaitBudget,
};

use crate::fleet::{
    TestFleet, TestRequest, TestTenant, at_ms, candidate, target, tenant, test_request, tokens,
};

const LONG_WAIT: WaitBudget = WaitBudget {
    limit: Duration::from_secs(86_400),
    waited: Duration::ZERO,
    bytes: 100,
};

/// One worker, which computes one prompt at a time: requests are tried in the order of the queue.
struct OneWorker {
    fleet: TestFleet,
    topics: u32,
    waiting: BTreeMap<Ticket, (TestTenant, u32)>,
    running: Option<ReservationId>,
    now_ms: u64,
    /// The tenant and blocks of each request, in the order in which they were bound.
    bound: Vec<(String, u32)>,
}

impl OneWorker {
    fn new() -> Self {
        let queue = QueueSettings {
            hold_above: Duration::ZERO,
            ageing: 0.0,
            ..QueueSettings::default()
        };
        let settings = RoutingSettings {
            queue,
            ..RoutingSettings::default()
        };
        Self {
            fleet: TestFleet::new(1, settings),
            topics: 0,
            waiting: BTreeMap::new(),
            running: None,
            now_ms: 0,
            bound: Vec::new(),
        }
    }

    fn now(&self) -> Moment {
        at_ms(self.now_ms)
    }

    fn request(&mut self, tenant: &TestTenant, blocks: u32) -> TestRequest {
        self.topics += 1;
        TestRequest {
            wait_budget: Some(LONG_WAIT),
            tenant: Some(tenant.clone()),
            output: Some(1),
            ..test_request(tokens(self.topics, blocks))
        }
    }

    fn send(&mut self, tenant: &TestTenant, blocks: u32) {
        let request = self.request(tenant, blocks);
        self.send_request(tenant, blocks, &request);
    }

    fn send_request(&mut self, tenant: &TestTenant, blocks: u32, request: &TestRequest) {
        match self.fleet.dispatch(self.now(), request) {
            Dispatch::Plan(plan) => self.start(tenant, blocks, &plan),
            Dispatch::Queued(ticket) => {
                self.waiting.insert(ticket, (tenant.clone(), blocks));
            }
            Dispatch::Refused(refusal) => panic!("{refusal}"),
        }
    }

    /// Gives another worker a prompt that takes longer than a test.
    fn occupy(&mut self, other: u32) {
        self.fleet.index.register(target(other), "m".into());
        let own = std::mem::replace(&mut self.fleet.candidates, vec![candidate(other)]);
        let request = self.request(&tenant("elsewhere"), 5_000);
        self.fleet.plan(self.now(), &request);
        self.fleet.candidates = own;
    }

    fn start(&mut self, tenant: &TestTenant, blocks: u32, plan: &Plan) {
        assert!(self.running.is_none(), "one at a time");
        self.running = Some(plan.reservation);
        self.bound.push((tenant.name.to_string(), blocks));
    }

    /// Ends the running request, as long as its prompt takes, and returns its tenant.
    fn step(&mut self) -> Option<String> {
        let id = self.running.take()?;
        let (name, blocks) = self.bound.last().cloned()?;
        // A block takes 16/7 ms at the rate that is assumed before any sample.
        self.now_ms += (u64::from(blocks) * 16).div_ceil(7);
        let router = &self.fleet.router;
        let mut released = router.first_token(self.now(), id);
        released.extend(router.done(self.now(), id));
        while released.is_empty() && router.next_release(self.now()) == Some(self.now()) {
            released.extend(router.take_released(self.now()));
        }
        self.take(released);
        Some(name)
    }

    /// Makes all passes that are due; they bind nothing while the worker is busy.
    fn end_passes(&mut self) {
        let now = self.now();
        while (self.fleet.router.next_release(now)).is_some_and(|then| then <= now) {
            let released = self.fleet.router.take_released(now);
            self.take(released);
        }
    }

    fn take(&mut self, released: Vec<ReleasedRequest>) {
        for released in released {
            let (tenant, blocks) = self.waiting.remove(&released.ticket).expect("it waited");
            self.start(&tenant, blocks, &released.plan);
        }
    }

    /// Blocks that each tenant was given in the last `last` bindings.
    fn blocks_of(&self, name: &str, from: usize) -> u32 {
        let bound = self.bound[from..].iter();
        bound
            .filter(|(tenant, _)| tenant == name)
            .map(|(_, blocks)| blocks)
            .sum()
    }
}

fn weighted(name: &str, weight: f64) -> TestTenant {
    TestTenant {
        weight,
        ..tenant(name)
    }
}

#[test]
#[contract("V32")]
fn a_tenant_with_one_request_is_next_whatever_another_has_waiting() {
    let mut worker = OneWorker::new();
    let (many, one) = (tenant("many"), tenant("one"));
    (0..51).for_each(|_| worker.send(&many, 10));
    for _ in 0..5 {
        // Longer than any of the others.
        worker.send(&one, 12);
        worker.step();
        worker.step();
        assert_eq!(worker.blocks_of("one", worker.bound.len() - 2), 12);
    }
}

#[test]
#[contract("F79")]
fn a_tenant_with_one_request_is_next_where_another_has_all_other_places_of_the_queue() {
    let mut worker = OneWorker::new();
    let (many, one) = (tenant("many"), tenant("one"));
    let places = QueueSettings::default().max_entries;
    assert_eq!(places, 10_000);
    // The first one runs.
    for _ in 0..places {
        // The numbers of tokens end behind topic 4,294.
        if worker.topics == 4_000 {
            worker.topics = 1;
        }
        worker.send(&many, 10);
    }
    worker.send(&one, 12);
    assert_eq!(worker.fleet.router.queued_requests(), places);
    worker.step();
    worker.step();
    assert_eq!(worker.blocks_of("one", worker.bound.len() - 2), 12);
}

/// A request that may wait.
fn may_wait(name: &str, topic: u32, blocks: u32) -> TestRequest {
    TestRequest {
        wait_budget: Some(LONG_WAIT),
        tenant: Some(tenant(name)),
        output: Some(1),
        ..test_request(tokens(topic, blocks))
    }
}

fn begins(fleet: &TestFleet, now_ms: u64, request: &TestRequest) -> bool {
    match fleet.dispatch(at_ms(now_ms), request) {
        Dispatch::Plan(_) => true,
        Dispatch::Queued(_) => false,
        Dispatch::Refused(refusal) => panic!("{refusal}"),
    }
}

/// One worker with five replies of the tenant `many` and a prompt of it that takes 46 ms, while its
/// next request waits with this priority.
fn worker_of_many(priority: i32) -> TestFleet {
    let fleet = TestFleet::new(1, RoutingSettings::default());
    for topic in 1..=5 {
        let plan = fleet.plan(at_ms(0), &may_wait("many", topic, 1));
        fleet.router.first_token(at_ms(0), plan.reservation);
    }
    fleet.plan(at_ms(0), &may_wait("many", 6, 20));
    let next = TestRequest {
        overrides: Overrides {
            priority,
            ..Overrides::default()
        },
        ..may_wait("many", 7, 20)
    };
    assert!(!begins(&fleet, 1, &next));
    fleet
}

#[test]
#[contract("V32")]
fn a_tenant_far_below_its_share_begins_behind_a_prompt_of_one_far_above_that_waits() {
    let fleet = worker_of_many(0);
    assert!(begins(&fleet, 2, &may_wait("one", 8, 20)));
    // What it has received counts as if it had waited, and where it waits too, nobody comes before.
    assert!(!begins(&fleet, 3, &may_wait("one", 9, 1)));
    assert!(!begins(&fleet, 4, &may_wait("another", 10, 1)));
}

#[test]
#[contract("V32")]
fn a_tenant_far_below_its_share_waits_behind_a_long_backlog() {
    let fleet = worker_of_many(0);
    for (number, expected) in [(0, true), (1, true), (2, false)] {
        let request = may_wait(&format!("t{number}"), 8 + number, 20);
        // 44, 88 and 133 ms are before it.
        let found = begins(&fleet, 2 + u64::from(number), &request);
        assert_eq!(found, expected, "{number}");
    }
}

#[test]
#[contract("V32")]
fn no_request_begins_early_where_one_of_a_higher_priority_waits() {
    for (priority, expected) in [(1, false), (0, true), (-1, true)] {
        let fleet = worker_of_many(priority);
        let found = begins(&fleet, 2, &may_wait("one", 8, 20));
        assert_eq!(found, expected, "{priority}");
    }
}

#[test]
fn a_tenant_without_others_has_its_shortest_request_first_as_without_tenants() {
    let mut worker = OneWorker::new();
    let alone = tenant("alone");
    for blocks in [10, 30, 5, 20] {
        worker.send(&alone, blocks);
    }
    while worker.step().is_some() {}
    let order: Vec<u32> = worker.bound.iter().map(|(_, blocks)| *blocks).collect();
    assert_eq!(order, [10, 5, 20, 30]);
}

#[test]
#[contract("F79")]
fn a_request_whose_prompt_is_cached_while_it_waits_moves_up() {
    const AFTER: usize = 15;
    let mut worker = OneWorker::new();
    let alone = tenant("alone");
    (0..16).for_each(|_| worker.send(&alone, 10));
    worker.send(&alone, 40);
    let long = worker.topics;
    (0..AFTER).for_each(|_| worker.send(&alone, 10));
    worker.fleet.stored(1, &tokens(long, 40), Tier::Device);
    // Each release estimates one of them again, the newest first.
    (0..=AFTER + 1).for_each(|_| drop(worker.step()));
    let lengths: Vec<u32> = worker.bound.iter().map(|(_, blocks)| *blocks).collect();
    let place = lengths.iter().position(|blocks| *blocks == 40);
    assert_eq!(place, Some(AFTER + 2), "{lengths:?}");
    assert_eq!(worker.waiting.len(), 14);
}

#[test]
#[contract("F79")]
fn many_requests_of_a_tenant_that_wait_for_a_busy_worker_keep_no_other_tenant_from_a_free_one() {
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
    let send = |of: &str, topic, blocks| {
        let request = TestRequest {
            wait_budget: Some(LONG_WAIT),
            tenant: Some(tenant(of)),
            ..test_request(tokens(topic, blocks))
        };
        match fleet.dispatch(at_ms(1), &request) {
            Dispatch::Queued(ticket) => ticket,
            other => panic!("all workers are busy: {other:?}"),
        }
    };
    // To compute their prompts on the other worker takes longer than all that they wait for.
    for _ in 0..60 {
        send("many", 1, 400);
    }
    let one = send("one", 2, 20);
    let released = fleet.router.first_token(at_ms(50), long[1].reservation);
    let went: Vec<_> = (released.iter())
        .map(|released| (released.ticket, released.plan.decode.target))
        .collect();
    assert_eq!(went, [(one, target(2))], "in one call");
}

#[test]
fn tenants_that_wait_share_the_work_by_their_weights() {
    for (one, three) in [(1.0, 3.0), (0.01, 0.03), (200.0, 600.0)] {
        let mut worker = OneWorker::new();
        let (one, three) = (weighted("one", one), weighted("three", three));
        for _ in 0..400 {
            worker.send(&one, 7);
            worker.send(&three, 20);
        }
        (0..200).for_each(|_| drop(worker.step()));
        let ratio = f64::from(worker.blocks_of("three", 0)) / f64::from(worker.blocks_of("one", 0));
        assert!((2.85..3.15).contains(&ratio), "{ratio}");
    }
}

#[test]
fn time_without_requests_is_no_credit() {
    let mut worker = OneWorker::new();
    let (busy, idle) = (tenant("busy"), tenant("idle"));
    (0..200).for_each(|_| worker.send(&busy, 10));
    (0..100).for_each(|_| drop(worker.step()));
    (0..100).for_each(|_| worker.send(&idle, 10));
    let before = worker.bound.len();
    (0..40).for_each(|_| drop(worker.step()));
    let (busy, idle) = (
        worker.blocks_of("busy", before),
        worker.blocks_of("idle", before),
    );
    assert!(busy.abs_diff(idle) <= 10, "{busy} and {idle} blocks");
}

#[test]
fn work_of_another_pool_does_not_put_a_tenant_behind_those_that_wait_for_a_slow_one() {
    let mut worker = OneWorker::new();
    // What the others received on a fast pool moves the virtual time of all, and nothing here.
    let slow = worker.fleet.candidates.clone();
    worker.fleet.index.register(target(2), "m".into());
    let fast = vec![candidate(2)];
    let elsewhere = |worker: &mut OneWorker, name: &str, blocks: u32| {
        worker.fleet.candidates.clone_from(&fast);
        let request = worker.request(&tenant(name), blocks);
        let plan = worker.fleet.plan(worker.now(), &request);
        worker
            .fleet
            .router
            .first_token(worker.now(), plan.reservation);
        worker.fleet.router.done(worker.now(), plan.reservation);
        worker.fleet.candidates.clone_from(&slow);
    };
    (0..40).for_each(|_| worker.send(&tenant("a"), 10));
    (0..40).for_each(|_| worker.send(&tenant("c"), 10));
    (0..50).for_each(|_| elsewhere(&mut worker, "fast", 100));
    elsewhere(&mut worker, "b", 1);
    worker.send(&tenant("b"), 10);
    let before = worker.bound.len();
    (0..5).for_each(|_| drop(worker.step()));
    assert_eq!(worker.blocks_of("b", before), 10, "{:?}", worker.bound);
}

#[test]
#[contract("F79")]
fn a_request_starts_where_those_are_that_wait_for_one_of_its_workers_in_another_queue() {
    let mut worker = OneWorker::new();
    (0..40).for_each(|_| worker.send(&tenant("many"), 10));
    // The second long prompt of a tenant moves the virtual time of all by the first.
    worker.occupy(2);
    worker.occupy(3);
    worker.fleet.candidates = vec![candidate(1), candidate(2)];
    worker.send(&tenant("one"), 12);
    let before = worker.bound.len();
    (0..3).for_each(|_| drop(worker.step()));
    assert_eq!(worker.blocks_of("one", before), 12, "{:?}", worker.bound);
}

#[test]
#[contract("F79")]
fn queues_that_share_a_worker_take_turns_however_many_they_are() {
    let mut worker = OneWorker::new();
    worker.send(&tenant("first"), 10);
    // More sets of targets than one call compares.
    for other in 2..=20 {
        worker.occupy(other);
        worker.fleet.candidates = vec![candidate(1), candidate(other)];
        let name = format!("t{other}");
        (0..10).for_each(|_| worker.send(&tenant(&name), 10));
    }
    worker.occupy(21);
    worker.fleet.candidates = vec![candidate(1), candidate(21)];
    worker.send(&tenant("one"), 12);
    let before = worker.bound.len();
    // Two turns of each queue.
    for _ in 0..40 {
        worker.step();
        worker.end_passes();
    }
    assert_eq!(worker.blocks_of("one", before), 12, "{:?}", worker.bound);
}

#[test]
fn a_priority_band_comes_before_any_share() {
    let mut worker = OneWorker::new();
    let (usual, urgent) = (tenant("usual"), tenant("urgent"));
    (0..20).for_each(|_| worker.send(&usual, 10));
    for _ in 0..10 {
        let mut request = worker.request(&urgent, 50);
        request.overrides = Overrides {
            priority: 1,
            ..Overrides::default()
        };
        worker.send_request(&urgent, 50, &request);
    }
    worker.step();
    (0..9).for_each(|_| assert_eq!(worker.step().as_deref(), Some("urgent")));
}

#[test]
fn a_program_with_many_requests_at_once_shares_its_tenants_part_with_the_others() {
    let mut worker = OneWorker::new();
    let program = |number| TestTenant {
        program: Some(number),
        ..tenant("a")
    };
    let alone = tenant("a");
    // The first of them runs at once.
    (0..20).for_each(|_| worker.send(&program(1), 10));
    (0..20).for_each(|_| worker.send(&program(2), 11));
    worker.send(&alone, 12);
    (0..5).for_each(|_| drop(worker.step()));
    let blocks: Vec<u32> = worker.bound.iter().map(|(_, blocks)| *blocks).collect();
    assert_eq!(blocks, [10, 11, 12, 10, 11, 10], "the programs take turns");
}

#[test]
fn the_work_that_the_engine_reported_replaces_the_estimate() {
    let mut worker = OneWorker::new();
    let (writer, reader) = (tenant("writer"), tenant("reader"));
    (0..30).for_each(|_| worker.send(&writer, 10));
    (0..30).for_each(|_| worker.send(&reader, 10));
    for _ in 0..20 {
        let (id, is_writer) = (
            worker.running.expect("it runs"),
            worker
                .bound
                .last()
                .is_some_and(|(name, _)| name == "writer"),
        );
        // 0.02 ms for each token of a reply and more for its context: about as much as the prompt.
        worker.fleet.router.record_work(
            at_ms(worker.now_ms),
            id,
            ReportedWork {
                prompt_tokens: 160,
                cached_tokens: Some(0),
                output_tokens: if is_writer { 2_000 } else { 1 },
                shows_decode_steps: true,
            },
        );
        worker.step();
    }
    let (writer, reader) = (worker.blocks_of("writer", 0), worker.blocks_of("reader", 0));
    assert!(reader >= 3 * writer, "{reader} and {writer} blocks");
}

#[test]
#[contract("V32")]
fn a_full_share_of_the_queue_keeps_only_its_own_tenant_out() {
    let mut worker = OneWorker::new();
    let limited = |name: &str| TestTenant {
        most_queued: Some(2),
        ..tenant(name)
    };
    let (one, other) = (limited("one"), limited("other"));
    // The first one runs.
    (0..3).for_each(|_| worker.send(&one, 10));
    let count = |worker: &OneWorker, name| worker.fleet.router.queued_requests_of(name);
    assert_eq!(count(&worker, "one"), 2);
    let fourth = worker.request(&one, 10);
    match worker.fleet.dispatch(worker.now(), &fourth) {
        Dispatch::Refused(refusal) => assert_eq!(refusal.queue_full, Some(QueueLimit::Tenant)),
        other => panic!("{other:?}"),
    }
    worker.send(&other, 10);
    assert_eq!((count(&worker, "one"), count(&worker, "other")), (2, 1));
    // Given up, or bound: either frees the place.
    let ticket = *worker.waiting.keys().next().expect("one waits");
    worker.waiting.remove(&ticket);
    assert!(worker.fleet.router.cancel(ticket));
    assert_eq!(count(&worker, "one"), 1);
    worker.step();
    worker.step();
    assert_eq!((count(&worker, "one"), count(&worker, "other")), (0, 0));
    assert_eq!(count(&worker, "unknown"), 0);
}

/// A tenant with a weight, and the lengths of its requests.
fn tenants() -> impl Strategy<Value = Vec<(f64, Vec<u32>)>> {
    let one = (
        prop_oneof![Just(1.0), 0.1f64..10.0],
        prop::collection::vec(1u32..40, 60..90),
    );
    prop::collection::vec(one, 2..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The bound of start-time fair queueing: while two tenants wait, what they receive over their
    /// weights differs by at most one longest request of each.
    #[test]
    fn while_tenants_wait_their_shares_differ_by_at_most_a_request_of_each(tenants in tenants()) {
        let mut worker = OneWorker::new();
        let all: Vec<TestTenant> = (0..tenants.len())
            .map(|i| weighted(&format!("t{i}"), tenants[i].0))
            .collect();
        // The worker is busy while they come.
        worker.send(&tenant("first"), 1);
        for (tenant, (_, lengths)) in all.iter().zip(&tenants) {
            lengths.iter().for_each(|blocks| worker.send(tenant, *blocks));
        }
        let longest = |i: usize| f64::from(*tenants[i].1.iter().max().expect("some")) / tenants[i].0;
        let mut left: Vec<usize> = tenants.iter().map(|(_, lengths)| lengths.len()).collect();
        let mut given = vec![0.0; tenants.len()];
        worker.step();
        while left.iter().all(|left| *left > 0) {
            let (name, blocks) = worker.bound.last().cloned().expect("one runs");
            let i = all.iter().position(|tenant| *tenant.name == *name).expect("a tenant");
            // A reply of one token counts for less than a block.
            given[i] += (f64::from(blocks) + 0.1) / tenants[i].0;
            left[i] -= 1;
            for (j, k) in (0..all.len()).flat_map(|j| (0..j).map(move |k| (j, k))) {
                let (most, apart) = (longest(j) + longest(k), f64::abs(given[j] - given[k]));
                prop_assert!(apart <= 1.1 * most + 1.0, "{apart} of {most}: {given:?}");
            }
            worker.step();
        }
    }

    /// The starvation bound: a request waits at most for its tenant's work before it, over its
    /// tenant's part of the weights, and for a request of every other tenant; and in any case it is
    /// bound when its wait budget is used up, whatever others do.
    #[test]
    fn no_request_waits_longer_than_its_share_allows(
        others in prop::collection::vec((0.1f64..10.0, 1u32..40), 1..5),
        own in (0.1f64..10.0, 1u32..40),
        rounds in 1u32..4,
    ) {
        let mut worker = OneWorker::new();
        let name = |i: usize| format!("t{i}");
        let mut queues: VecDeque<(TestTenant, u32)> = others
            .iter()
            .enumerate()
            .map(|(i, (weight, blocks))| (weighted(&name(i), *weight), *blocks))
            .collect();
        for _ in 0..60 {
            queues.iter().for_each(|(tenant, blocks)| worker.send(tenant, *blocks));
        }
        (0..rounds * 7).for_each(|_| drop(worker.step()));
        let me = weighted("me", own.0);
        worker.send(&me, own.1);
        let before = worker.bound.len();
        // The others never run out.
        while worker.bound.iter().all(|(name, _)| name != "me") {
            let next = queues.pop_front().expect("there are others");
            worker.send(&next.0, next.1);
            queues.push_back(next);
            worker.step();
            // In its first round each other tenant is bound once at most, and beyond that only until
            // it has had as much over its weight as the least of them when the request came.
            prop_assert!(worker.bound.len() - before <= 2 * others.len() + 1);
        }
    }

    #[test]
    fn a_request_is_bound_at_the_end_of_its_wait_whatever_its_share(limit_ms in 1u64..50) {
        let mut worker = OneWorker::new();
        let (heavy, light) = (weighted("heavy", 1e3), weighted("light", 1e-3));
        (0..100).for_each(|_| worker.send(&heavy, 10));
        (0..2).for_each(|_| worker.send(&light, 40));
        let limit = Duration::from_millis(limit_ms);
        let last = TestRequest {
            wait_budget: Some(WaitBudget { limit, ..LONG_WAIT }),
            ..worker.request(&light, 40)
        };
        let Dispatch::Queued(ticket) = worker.fleet.dispatch(worker.now(), &last) else {
            panic!("the worker is busy");
        };
        let due = worker.now() + limit;
        let released = worker.fleet.router.take_released(due);
        prop_assert!(released.iter().any(|released| released.ticket == ticket));
    }
}
