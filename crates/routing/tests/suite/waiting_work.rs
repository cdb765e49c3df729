//! Work that waits in the router counts towards the target that it waits for, and towards none when
//! it no longer waits.

use std::time::Duration;

use contract_id::contract;
use kv_blocks::{Moment, Tier, WorkerId};
use routing::{Dispatch, Pin, ReservationId, RoutingSettings, ScoredCandidate, Ticket, WaitBudget};

use crate::fleet::{
    TestFleet, TestRequest, at_ms, candidate, target, tenant, test_request, tokens,
};

const PATIENT: WaitBudget = WaitBudget {
    limit: Duration::from_secs(30),
    waited: Duration::ZERO,
    bytes: 100,
};

/// Blocks of the shared beginning, and of what follows it. At the prior rate a block takes 16/7 ms.
const HOT: u32 = 200;
const TAIL: u32 = 16;

/// A request with the beginning that worker 1 holds.
fn hot(number: u32) -> TestRequest {
    let mut prompt = tokens(1, HOT);
    prompt.extend(tokens(100 + number, TAIL));
    TestRequest {
        wait_budget: Some(PATIENT),
        ..test_request(prompt)
    }
}

/// A fleet of two. Worker 1 holds the hot beginning and has a long prompt to compute.
fn busy_holder() -> (TestFleet, ReservationId) {
    let fleet = TestFleet::new(2, RoutingSettings::default());
    fleet.stored(1, &tokens(1, HOT), Tier::Device);
    let long = occupy(&fleet, 1);
    (fleet, long)
}

/// Gives a worker a prompt of 100 blocks to compute.
fn occupy(fleet: &TestFleet, worker: u32) -> ReservationId {
    let pin = Some(Pin {
        worker: WorkerId(worker),
        rank: None,
    });
    let long = TestRequest {
        pin,
        ..test_request(tokens(10 + worker, 100))
    };
    fleet.plan(at_ms(0), &long).reservation
}

fn queued(dispatch: Dispatch) -> Ticket {
    match dispatch {
        Dispatch::Queued(ticket) => ticket,
        other => panic!("expected a ticket, got {other:?}"),
    }
}

/// A term of a request that is cold everywhere, by worker from 1.
fn term(fleet: &TestFleet, now: Moment, name: &str) -> Vec<f64> {
    let decision = fleet
        .preview(now, &test_request(tokens(3, 300)))
        .expect("a target is eligible");
    let mut rows: Vec<ScoredCandidate> = decision.candidates;
    rows.sort_by_key(|row| row.target);
    rows.iter()
        .map(|row| row.terms.get(name).expect("warm has this term"))
        .collect()
}

fn waiting_ms(fleet: &TestFleet, ms: u64) -> [f64; 2] {
    term(fleet, at_ms(ms), "waiting_ms")
        .try_into()
        .expect("there are two workers")
}

fn close(got: f64, want: f64) -> bool {
    (got - want).abs() < 1e-3
}

#[test]
fn a_request_counts_at_its_target_from_its_arrival_until_it_is_bound() {
    let (fleet, long) = busy_holder();
    assert_eq!(waiting_ms(&fleet, 1), [0.0, 0.0]);
    queued(fleet.dispatch(at_ms(1), &hot(1)));
    let [one, elsewhere] = waiting_ms(&fleet, 1);
    assert!(one > 0.0 && elsewhere == 0.0, "{one} {elsewhere}");
    queued(fleet.dispatch(at_ms(1), &hot(2)));
    let [two, _] = waiting_ms(&fleet, 1);
    assert!(close(two, 2.0 * one), "{one} {two}");

    // The second one still waits for the first.
    let first = fleet.router.first_token(at_ms(50), long);
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].plan.decode.target, target(1));
    let [left, elsewhere] = waiting_ms(&fleet, 50);
    assert!(close(left, one) && elsewhere == 0.0, "{left} {elsewhere}");
    let second = fleet
        .router
        .first_token(at_ms(90), first[0].plan.reservation);
    assert_eq!(second.len(), 1);
    assert_eq!(waiting_ms(&fleet, 90), [0.0, 0.0]);
}

#[test]
fn a_cancelled_request_no_longer_counts() {
    let (fleet, _) = busy_holder();
    let first = queued(fleet.dispatch(at_ms(1), &hot(1)));
    let [one, _] = waiting_ms(&fleet, 1);
    let second = queued(fleet.dispatch(at_ms(1), &hot(2)));
    assert!(fleet.router.cancel(first));
    let [left, _] = waiting_ms(&fleet, 1);
    assert!(close(left, one), "{left} {one}");
    assert!(!fleet.router.cancel(first));
    assert!(fleet.router.cancel(second));
    assert_eq!(waiting_ms(&fleet, 1), [0.0, 0.0]);
}

#[test]
fn a_request_with_other_candidates_counts_nowhere_until_it_is_estimated_again() {
    let (mut fleet, _) = busy_holder();
    let ticket = queued(fleet.dispatch(at_ms(1), &hot(1)));
    assert!(waiting_ms(&fleet, 1)[0] > 0.0);
    let two = fleet.candidates.clone();
    fleet.candidates.push(candidate(3));
    let replaced = fleet.with_job(&hot(1), |job| {
        fleet.router.replace_candidates(at_ms(1), ticket, job)
    });
    assert!(replaced);
    assert_eq!(term(&fleet, at_ms(1), "waiting_ms"), [0.0; 3]);
    fleet.candidates = two;
    assert!(fleet.router.cancel(ticket));
    assert_eq!(waiting_ms(&fleet, 1), [0.0, 0.0]);
}

#[test]
#[contract("F79")]
fn a_release_estimates_the_request_that_it_binds_and_one_of_those_behind_it() {
    let (fleet, long) = busy_holder();
    let waiting = [0, 1, 2].map(|number| queued(fleet.dispatch(at_ms(1), &hot(number))));
    let [three, _] = waiting_ms(&fleet, 1);
    let one = three / 3.0;
    // With new candidates each counts nowhere until it is estimated again.
    for (number, ticket) in (0..).zip(waiting) {
        let replaced = fleet.with_job(&hot(number), |job| {
            fleet.router.replace_candidates(at_ms(2), ticket, job)
        });
        assert!(replaced);
    }
    assert_eq!(waiting_ms(&fleet, 2), [0.0, 0.0]);
    let released = fleet.router.first_token(at_ms(50), long);
    assert_eq!(released.len(), 1);
    let [estimated, elsewhere] = waiting_ms(&fleet, 50);
    assert!(close(estimated, one), "{estimated} of {three}");
    assert_eq!(elsewhere, 0.0);
}

#[test]
fn when_enough_waits_for_the_holder_of_a_hot_beginning_another_worker_computes_it() {
    let (fleet, _) = busy_holder();
    let copied_at = (0..64).find(|number| match fleet.dispatch(at_ms(1), &hot(*number)) {
        Dispatch::Plan(plan) => {
            assert_eq!(plan.decode.target, target(2));
            true
        }
        Dispatch::Queued(_) => false,
        Dispatch::Refused(refusal) => panic!("{refusal:?}"),
    });
    let copied_at = copied_at.expect("the beginning is copied");
    // A few requests wait less than the copy takes.
    assert!(copied_at >= 3, "after {copied_at} requests");
}

#[test]
fn the_first_request_takes_an_open_worker_whatever_waits_behind_it() {
    for opened in [1, 2] {
        let fleet = TestFleet::new(2, RoutingSettings::default());
        let long = [1, 2].map(|worker| occupy(&fleet, worker));
        let waiting = [0, 1, 2, 3, 4, 5].map(|number| {
            let alike = TestRequest {
                wait_budget: Some(PATIENT),
                ..test_request(tokens(100 + number, 200))
            };
            queued(fleet.dispatch(at_ms(1), &alike))
        });
        let released = fleet
            .router
            .first_token(at_ms(50), long[opened as usize - 1]);
        let bound: Vec<_> = released
            .iter()
            .map(|released| (released.ticket, released.plan.decode.target))
            .collect();
        assert_eq!(bound, [(waiting[0], target(opened))]);
    }
}

#[test]
fn a_pass_leaves_requests_for_the_holder_until_those_before_one_take_as_long_as_a_copy() {
    let (fleet, _) = busy_holder();
    let other = occupy(&fleet, 2);
    let waiting: Vec<Ticket> = (0..40)
        .map(|number| queued(fleet.dispatch(at_ms(1), &hot(number))))
        .collect();
    let released = fleet.router.first_token(at_ms(50), other);
    let [copied] = &released[..] else {
        panic!("one begins: {released:?}");
    };
    assert_eq!(copied.plan.decode.target, target(2));
    let before = waiting.iter().position(|ticket| *ticket == copied.ticket);
    assert!(before.is_some_and(|before| before >= 3), "{before:?}");
}

#[test]
fn a_tenant_with_many_waiting_requests_drives_no_other_from_its_cache() {
    let (fleet, _) = busy_holder();
    let of = |name: &str, request: TestRequest| TestRequest {
        tenant: Some(tenant(name)),
        ..request
    };
    let waits = |name: &str| {
        let request = of(name, test_request(tokens(3, 300)));
        let decision = fleet.preview(at_ms(1), &request).expect("a target");
        let mut rows = decision.candidates.iter();
        let holder = rows.find(|row| row.target == target(1));
        holder
            .and_then(|row| row.terms.get("waiting_ms"))
            .expect("warm has this term")
    };
    queued(fleet.dispatch(at_ms(1), &of("many", hot(0))));
    let one = waits("many");
    for number in 1..8 {
        queued(fleet.dispatch(at_ms(1), &of("many", hot(number))));
    }
    assert!(close(waits("many"), 8.0 * one), "{one}");
    assert!(close(waits("other"), one), "{one} and {}", waits("other"));
}
