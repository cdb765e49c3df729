//! What a router has learned is of use to a later process, whatever the bytes are that it reads.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::{Moment, WorkerId};
use proptest::prelude::*;
use routing::{LearnedState, Policy, Rates, SessionKeys, SessionState};

use crate::{
    fleet::{TestFleet, TestRequest, at_ms, target, test_request, tokens},
    session::hard,
};

fn in_session(name: u64) -> TestRequest {
    let keys = SessionKeys {
        name: Some(name),
        growth: None,
    };
    TestRequest {
        session: Some(Arc::new(keys)),
        random: name,
        ..test_request(tokens(1, 4))
    }
}

/// Requests one after the other, on workers of different speed: worker 1 takes four times as long.
fn taught() -> TestFleet {
    let fleet = TestFleet::with(3, Policy::Random);
    let mut now = at_ms(1000);
    for number in 0..200 {
        let request = TestRequest {
            random: u64::from(number) * 7919,
            output: Some(40),
            ..test_request(tokens(number, 1 + number % 50))
        };
        let plan = fleet.plan(now, &request);
        let slow = if plan.decode.target.worker == WorkerId(1) {
            4
        } else {
            1
        };
        now = now + Duration::from_millis(10 + slow * u64::from(1 + number % 50));
        fleet.router.first_token(now, plan.reservation);
        fleet.router.done(now, plan.reservation);
    }
    fleet
}

fn text(learned: &LearnedState) -> String {
    serde_json::to_string(learned).expect("plain data")
}

fn moved(from: &TestFleet) -> TestFleet {
    let learned = text(&from.router.learned(at_ms(100_000)));
    let learned = serde_json::from_str(&learned).expect("what was written");
    let fleet = hard(3, Policy::Random);
    fleet.router.take_over(Moment::START, learned);
    fleet
}

fn close(one: &Rates, other: &Rates) -> bool {
    let close = |one: f64, other: f64| (one - other).abs() <= 1e-9 * one.abs();
    close(one.prefill_tokens_per_s, other.prefill_tokens_per_s)
        && close(one.overhead_ms, other.overhead_ms)
        && (one.samples, one.learned) == (other.samples, other.learned)
}

#[test]
#[contract("DY21")]
fn the_speed_of_workers_is_known_to_the_next_process() {
    let before = taught();
    let after = moved(&before);
    for worker in (1..=3).map(WorkerId) {
        let (was, is) = (before.router.rates(worker), after.router.rates(worker));
        assert!(was.learned && close(&was, &is), "{was:?} {is:?}");
    }
    let speed = |worker| after.router.rates(WorkerId(worker)).prefill_tokens_per_s;
    assert!(speed(1) < speed(2) / 2.0, "{} {}", speed(1), speed(2));
}

#[test]
#[contract("DY21")]
fn a_session_stays_on_its_worker_in_the_next_process() {
    let before = hard(3, Policy::Random);
    let homes: Vec<u32> = (0..20)
        .map(|key| before.goes_to(Moment::START, &in_session(key)))
        .collect();
    let after = moved(&before);
    assert_eq!(after.router.session_keys(), before.router.session_keys());
    for (key, home) in (0..).zip(homes) {
        let decision = after.preview(at_ms(5), &in_session(key)).unwrap();
        let state = decision.session.unwrap().state;
        assert_eq!(
            (decision.winner.target, state),
            (target(home), SessionState::Same)
        );
    }
}

#[test]
fn what_was_learned_of_unknown_workers_is_dropped() {
    let before = taught();
    before.goes_to(at_ms(90_000), &in_session(1));
    let mut learned = before.router.learned(at_ms(100_000));
    learned.retain(|worker| worker == WorkerId(2));
    let after = TestFleet::with(3, Policy::Random);
    after.router.take_over(Moment::START, learned);
    assert!(!after.router.rates(WorkerId(1)).learned);
    assert!(after.router.rates(WorkerId(2)).learned);
}

#[test]
fn sessions_that_are_over_are_not_passed_on() {
    let before = hard(3, Policy::Random);
    before.goes_to(Moment::START, &in_session(1));
    assert_eq!(before.router.session_keys(), 1);
    let late = Moment::at(Duration::from_secs(3600));
    let after = TestFleet::with(3, Policy::Random);
    after
        .router
        .take_over(Moment::START, before.router.learned(late));
    assert_eq!(after.router.session_keys(), 0);
}

/// A number that a damaged or foreign file may have.
fn wrong() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("0".to_owned()),
        Just("-1".to_owned()),
        Just("1e308".to_owned()),
        Just("1e-308".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("null".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Estimates stay finite and positive, and requests are decided.
    #[test]
    fn no_content_of_a_file_harms_later_decisions(changes in prop::collection::vec((any::<prop::sample::Index>(), wrong()), 1..6)) {
        let mut words: Vec<String> = Vec::new();
        for word in text(&taught().router.learned(at_ms(100_000))).split_inclusive([',', '[', ']', ':', '}', '{']) {
            words.push(word.to_owned());
        }
        for (at, number) in changes {
            let word = at.get_mut(&mut words);
            let end = word.chars().last().unwrap();
            if word.len() > 1 && word.as_bytes()[0].is_ascii_digit() {
                *word = format!("{number}{end}");
            }
        }
        let fleet = TestFleet::with(3, Policy::Warm);
        if let Ok(learned) = serde_json::from_str::<LearnedState>(&words.concat()) {
            fleet.router.take_over(Moment::START, learned);
        }
        for number in 0..30 {
            let plan = fleet.plan(at_ms(number * 50), &test_request(tokens(1, 5)));
            fleet.router.first_token(at_ms(number * 50 + 20), plan.reservation);
            fleet.router.done(at_ms(number * 50 + 30), plan.reservation);
            for worker in (1..=3).map(WorkerId) {
                let rates = fleet.router.rates(worker);
                prop_assert!(rates.prefill_tokens_per_s.is_finite() && rates.prefill_tokens_per_s > 0.0, "{rates:?}");
                prop_assert!(rates.overhead_ms.is_finite() && rates.overhead_ms >= 0.0, "{rates:?}");
            }
        }
    }
}
