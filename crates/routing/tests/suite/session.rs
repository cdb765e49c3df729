//! Sessions: their target, moves, and the stored state.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::{Moment, WorkerId};
use proptest::prelude::*;
use routing::{
    Method, Pin, Policy, PromptGrowth, RoutingSection, RoutingSettings, SessionKeys, SessionMode,
    SessionSection, SessionState,
};

use crate::fleet::{
    TestFleet, TestRandom, TestRequest, at_ms, candidate, target, test_request, tokens,
};

pub(crate) fn hard(workers: u32, policy: Policy) -> TestFleet {
    TestFleet::new(
        workers,
        RoutingSettings {
            policy,
            section: RoutingSection {
                session: SessionSection {
                    mode: SessionMode::Hard,
                    ..SessionSection::default()
                },
                ..RoutingSection::default()
            },
            ..RoutingSettings::default()
        },
    )
}

fn named(name: u64, random: u64) -> TestRequest {
    let keys = SessionKeys {
        name: Some(name),
        growth: None,
    };
    TestRequest {
        session: Some(Arc::new(keys)),
        random,
        ..test_request(tokens(1, 4))
    }
}

/// A chat of these messages: instructions, a question, a reply, a question and so on.
fn grown(topics: &[&str], random: u64) -> TestRequest {
    let growth = PromptGrowth::of_turns(
        0,
        topics
            .iter()
            .enumerate()
            .map(|(at, text)| (text.as_bytes(), at > 1 && at % 2 == 0)),
    );
    TestRequest {
        session: Some(Arc::new(SessionKeys { name: None, growth })),
        random,
        ..test_request(tokens(1, 4))
    }
}

#[test]
fn a_hard_session_goes_to_its_target_under_every_policy() {
    for policy in Policy::ALL {
        let fleet = hard(8, policy);
        let bound = fleet.goes_to(Moment::START, &named(7, 1));
        for random in 2..20 {
            let plan = fleet.plan(Moment::START, &named(7, random));
            assert_eq!(plan.decode.target.worker.0, bound, "{policy}");
            assert_eq!(
                (plan.decision.method, plan.decision.label),
                (Method::Session, None),
                "{policy}"
            );
            let note = plan.decision.session.expect("it has a session");
            assert_eq!((note.id, note.state), (7, SessionState::Same), "{policy}");
        }
    }
}

#[test]
fn a_soft_session_affects_only_warm_and_only_between_similar_costs() {
    for policy in Policy::ALL {
        let fleets = [SessionMode::Off, SessionMode::Soft].map(|session| {
            TestFleet::new(
                4,
                RoutingSettings {
                    policy,
                    section: RoutingSection {
                        session: SessionSection {
                            mode: session,
                            ..SessionSection::default()
                        },
                        ..RoutingSection::default()
                    },
                    ..RoutingSettings::default()
                },
            )
        });
        let [off, soft] = fleets.each_ref().map(|fleet| {
            let one = |random| {
                let plan = fleet.plan(Moment::START, &named(7, random));
                fleet.router.done(Moment::START, plan.reservation);
                plan.decode.target.worker.0
            };
            (1..30).map(one).collect::<Vec<_>>()
        });
        assert!(off == soft || policy == Policy::Warm, "{policy}");
    }
    let fleet = TestFleet::with(2, Policy::Warm);
    let prompt = |topic| TestRequest {
        tokens: tokens(topic, 40),
        ..named(7, 1)
    };
    for worker in [1, 2] {
        fleet.stored(worker, &tokens(1, 40), kv_blocks::Tier::Device);
    }
    // Both targets hold it: the session stays on its first target, whichever was idle longer.
    let homes: Vec<_> = (0..2)
        .map(|_| {
            let plan = fleet.plan(Moment::START, &prompt(1));
            fleet.router.done(Moment::START, plan.reservation);
            plan.decode.target
        })
        .collect();
    let bound = homes[0];
    assert!(homes.iter().all(|target| *target == bound), "{homes:?}");
    let other = target(3 - bound.worker.0);
    // The other target holds this prompt: it costs far less there.
    fleet.stored(other.worker.0, &tokens(3, 40), kv_blocks::Tier::Device);
    let plan = fleet.plan(Moment::START, &prompt(3));
    assert_eq!(plan.decode.target, other);
    assert_eq!(
        plan.decision.session.expect("a session").state,
        SessionState::MovedByPolicy
    );
}

#[test]
fn a_conversation_is_recognized_by_its_growth_and_not_by_shared_instructions() {
    let fleet = hard(8, Policy::Random);
    let mut homes = Vec::new();
    for number in 0..20_u64 {
        let conversation = format!("c{number}");
        let question = format!("{conversation}: one");
        let first = fleet.plan(Moment::START, &grown(&["system", &question], number));
        assert_eq!(
            first.decision.session.expect("a session").state,
            SessionState::New
        );
        let bound = first.decode.target;
        let mut messages = vec!["system".to_owned(), question];
        for at in 0..6_u64 {
            messages.extend([
                format!("{conversation} reply {at}"),
                format!("{conversation} more {at}"),
            ]);
            let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
            let plan = fleet.plan(Moment::START, &grown(&messages, 31 * number + at));
            assert_eq!(plan.decode.target, bound);
            assert_eq!(
                plan.decision.session.map(|note| note.id),
                first.decision.session.map(|note| note.id)
            );
        }
        // A branch of the conversation follows it.
        let branch = ["system", &messages[1], &messages[2], "something else"];
        assert_eq!(
            fleet
                .plan(Moment::START, &grown(&branch, 77 + number))
                .decode
                .target,
            bound
        );
        homes.push(bound);
    }
    homes.sort_unstable();
    homes.dedup();
    assert!(homes.len() > 4, "{homes:?}");
}

#[test]
#[contract("V25")]
fn a_different_name_is_a_different_session() {
    let fleet = hard(8, Policy::RoundRobin);
    let homes: Vec<u32> = (1..=8)
        .map(|name| fleet.goes_to(Moment::START, &named(name, 1)))
        .collect();
    let mut sorted = homes.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [1, 2, 3, 4, 5, 6, 7, 8], "each took a turn");
    for (name, bound) in (1..=8).zip(&homes) {
        assert_eq!(fleet.goes_to(Moment::START, &named(name, 1)), *bound);
    }
}

#[test]
fn a_burst_of_one_session_spreads_within_the_load_bound() {
    for policy in [
        Policy::Random,
        Policy::KvAware,
        Policy::ConsistentHash,
        Policy::Warm,
    ] {
        let fleet = hard(4, policy);
        let per_worker = fleet.burst(500, &named(7, 1));
        // A quarter above an even share of 500, counted before the last request.
        assert!(
            per_worker.iter().all(|count| *count <= 157),
            "{policy} {per_worker:?}"
        );
        let small = hard(4, policy).burst(64, &named(7, 1));
        assert_eq!(
            small.iter().filter(|count| **count > 0).count(),
            1,
            "{policy} {small:?}"
        );
    }
    let fleet = hard(4, Policy::Random);
    for random in 0..64 {
        fleet.plan(Moment::START, &named(7, random));
    }
    let moved = fleet.plan(Moment::START, &named(7, 64));
    assert_eq!(
        moved.decision.session.expect("a session").state,
        SessionState::MovedFull
    );
    assert_eq!(moved.decision.method, Method::Policy);
    assert!(
        moved
            .decision
            .candidates
            .iter()
            .all(|row| row.terms.get("session_full") == Some(1.0))
    );
    let next = fleet.plan(Moment::START, &named(7, 65));
    assert_eq!(
        next.decode.target, moved.decode.target,
        "the session is assigned there now"
    );
}

#[test]
fn a_session_whose_target_is_gone_moves_once_and_stays() {
    let mut fleet = hard(4, Policy::Random);
    let bound = fleet.goes_to(Moment::START, &named(7, 3));
    fleet
        .candidates
        .retain(|candidate| candidate.target != target(bound));
    let moved = fleet.plan(Moment::START, &named(7, 4));
    assert_eq!(
        moved.decision.session.expect("a session").state,
        SessionState::MovedGone
    );
    fleet.candidates.push(candidate(bound));
    for random in 5..15 {
        assert_eq!(
            fleet.plan(Moment::START, &named(7, random)).decode.target,
            moved.decode.target
        );
    }
}

#[test]
fn a_pin_beats_a_session_and_the_session_follows_it() {
    let fleet = hard(4, Policy::Random);
    let bound = fleet.goes_to(Moment::START, &named(7, 3));
    let other = bound % 4 + 1;
    let pin = Some(Pin {
        worker: WorkerId(other),
        rank: None,
    });
    let pinned = fleet.plan(Moment::START, &TestRequest { pin, ..named(7, 4) });
    assert_eq!(
        (pinned.decode.target, pinned.decision.method),
        (target(other), Method::Pinned)
    );
    assert_eq!(fleet.goes_to(Moment::START, &named(7, 5)), other);
}

#[test]
fn a_preview_and_a_load_query_bind_no_session() {
    let fleet = hard(4, Policy::Random);
    for random in 0..10 {
        let decision = fleet
            .preview(Moment::START, &named(7, random))
            .expect("a target is eligible");
        assert_eq!(
            decision.session.expect("a session").state,
            SessionState::New
        );
        fleet.potential_loads(Moment::START, &named(7, random));
    }
    assert_eq!(fleet.router.session_keys(), 0);
}

#[test]
fn a_session_is_forgotten_with_its_worker_and_after_half_an_hour() {
    let fleet = hard(4, Policy::Random);
    let bound = fleet.goes_to(Moment::START, &named(7, 3));
    let state = |now| {
        fleet
            .preview(now, &named(7, 4))
            .expect("a target")
            .session
            .expect("a session")
            .state
    };
    assert_eq!(state(at_ms(1_799_999)), SessionState::Same);
    assert_eq!(state(at_ms(1_800_000)), SessionState::New);
    fleet.router.forget(WorkerId(bound));
    assert_eq!(
        (state(Moment::START), fleet.router.session_keys()),
        (SessionState::New, 0)
    );
}

#[test]
fn sessions_are_bounded_in_number_and_the_latest_are_kept() {
    let fleet = hard(2, Policy::Random);
    for name in 0..100_000 {
        let plan = fleet.plan(
            Moment::START,
            &TestRequest {
                tokens: Vec::new(),
                ..named(name, name)
            },
        );
        fleet.router.done(Moment::START, plan.reservation);
    }
    assert!(
        (32_768..=65_536).contains(&fleet.router.session_keys()),
        "{}",
        fleet.router.session_keys()
    );
    let latest = fleet
        .preview(Moment::START, &named(99_999, 1))
        .expect("a target");
    assert_eq!(latest.session.expect("a session").state, SessionState::Same);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_target_exceeds_the_load_bound_and_all_load_is_freed(seed: u64, workers in 1_u32..6) {
        let fleet = hard(workers, Policy::Random);
        let mut dice = TestRandom(seed);
        let (mut now, mut open) = (Moment::START, Vec::new());
        for _ in 0..600 {
            match dice.below(12) {
                0 => { fleet.router.forget(fleet.candidates[dice.below(fleet.candidates.len())].target.worker); }
                1 => now = now + Duration::from_secs(dice.below(1_000) as u64),
                2 | 3 if !open.is_empty() => {
                    let id = open.swap_remove(dice.below(open.len()));
                    fleet.router.done(now, id);
                }
                _ => {
                    let all = open.len() as f64 + 1.0;
                    let plan = fleet.plan(now, &named(dice.below(3) as u64, dice.roll()));
                    open.push(plan.reservation);
                    let most = (1.25 * all / f64::from(workers)).ceil().max(64.0);
                    // Only the policy may exceed it, for a new session, never from a full target.
                    if plan.decision.session.is_some_and(|note| note.state != SessionState::New) {
                        let in_flight = fleet.router.load(plan.decode.target).in_flight;
                        prop_assert!(f64::from(in_flight) <= most, "{in_flight} of {all}");
                    }
                }
            }
        }
        for id in open {
            fleet.router.done(now, id);
        }
        prop_assert_eq!(fleet.router.open_reservations(), 0);
        for worker in 1..=workers {
            prop_assert_eq!(fleet.router.load(target(worker)).in_flight, 0);
        }
    }
}
