//! What replicas learn from each other's requests.

use std::sync::Arc;

use contract_id::contract;
use kv_blocks::WorkerId;
use routing::{
    AdmissionMode, AttemptEnd, CacheSource, Method, Policy, PrefixHolder, PromptGrowth, Rates,
    RoutingSection, RoutingSettings, SessionKeys, SessionMode, SessionSection,
};

use super::{Replica, peer, sync};
use crate::fleet::{TestFleet, TestRequest, at_ms, test_request, tokens};

/// The rates of the sender and of its peer after 20 requests that began this far apart.
fn rates_after_requests(interval_ms: u64) -> [Rates; 2] {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    for n in 0..20 {
        let now = u64::from(n) * interval_ms;
        let id = here
            .fleet
            .plan(at_ms(now), &test_request(tokens(n, 70)))
            .reservation;
        here.router().first_token(at_ms(now + 20), id);
        here.router().done(at_ms(now + 30), id);
        sync(at_ms(now + 30), &here, peer(1), &there);
    }
    [&here, &there].map(|replica| replica.router().rates(WorkerId(1)))
}

#[test]
fn every_replica_learns_the_speed_of_workers_from_all_requests() {
    let [ours, theirs] = rates_after_requests(300);
    assert!(theirs.learned);
    assert_eq!(ours, theirs);
}

/// A fit takes longer than all else that a request changes.
#[test]
fn of_many_samples_of_one_worker_a_replica_takes_only_some() {
    let [ours, theirs] = rates_after_requests(100);
    assert_eq!((ours.samples, theirs.samples), (20, 7));
}

#[test]
fn failures_that_a_peer_saw_count_for_the_success_rate() {
    let [here, there] = [1, 2].map(|_| {
        Replica::new(
            2,
            RoutingSettings {
                policy: Policy::Composite,
                ..RoutingSettings::default()
            },
            100,
        )
    });
    let request = test_request(tokens(1, 4));
    let id = here.fleet.plan(at_ms(0), &request).reservation;
    here.router()
        .end_attempt(at_ms(1), id, AttemptEnd::BrokenOff);
    let terms = |replica: &Replica| {
        let request = TestRequest {
            prefix_holders: Some(vec![PrefixHolder {
                worker: "w1".into(),
                tokens: 64,
                hot: true,
            }]),
            ..request.clone()
        };
        let decision = replica.fleet.preview(at_ms(2), &request);
        let mut rows = decision.expect("a decision").candidates;
        rows.sort_unstable_by_key(|row| row.target);
        rows.iter().map(|row| row.cost).collect::<Vec<_>>()
    };
    assert_ne!(terms(&here), terms(&there));
    sync(at_ms(2), &here, peer(1), &there);
    assert_eq!(terms(&here), terms(&there));
}

fn with_sessions() -> RoutingSettings {
    RoutingSettings {
        policy: Policy::RoundRobin,
        section: RoutingSection {
            session: SessionSection {
                mode: SessionMode::Hard,
                ..RoutingSection::default().session
            },
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    }
}

#[test]
fn a_session_holds_through_any_replica() {
    let [here, there] = [1, 2].map(|_| Replica::new(4, with_sessions(), 100));
    let named = SessionKeys {
        name: Some(7),
        growth: None,
    };
    let turn = |messages: &[(&'static str, bool)]| SessionKeys {
        name: None,
        growth: PromptGrowth::of_turns(
            1,
            messages
                .iter()
                .map(|(text, is_reply)| (text.as_bytes(), *is_reply)),
        ),
    };
    let (first, second) = (
        turn(&[("hello", false)]),
        turn(&[("hello", false), ("hi", true), ("go on", false)]),
    );
    let text = vec![3u8; 3 * PromptGrowth::PIECE + 9];
    let prompt = |length: usize| SessionKeys {
        name: None,
        growth: PromptGrowth::of_text(2, &text[..length]),
    };
    let pairs = [
        (named.clone(), named),
        (first, second),
        (prompt(2 * PromptGrowth::PIECE + 5), prompt(text.len())),
    ];
    let request = |keys: SessionKeys| TestRequest {
        session: Some(Arc::new(keys)),
        ..test_request(tokens(1, 2))
    };
    for (opening, next) in pairs {
        // The turns of the two routers differ.
        there.fleet.plan(at_ms(0), &test_request(tokens(9, 1)));
        let plan = here.fleet.plan(at_ms(1), &request(opening));
        sync(at_ms(2), &here, peer(1), &there);
        let continued = there.fleet.plan(at_ms(3), &request(next));
        assert_eq!(continued.decode.target, plan.decode.target);
        assert_eq!(continued.decision.method, Method::Session);
        there.take();
    }
}

fn without_events(workers: u32, policy: Policy) -> Replica {
    let mut replica = Replica::new(
        workers,
        RoutingSettings {
            policy,
            ..RoutingSettings::default()
        },
        100,
    );
    for candidate in &mut replica.fleet.candidates {
        candidate.cache = CacheSource::Predicted;
    }
    replica
}

fn warm_tokens(fleet: &TestFleet, request: &TestRequest, now: u64) -> Vec<u32> {
    let decision = fleet.preview(at_ms(now), request);
    let mut rows = decision.expect("a decision").candidates;
    rows.sort_unstable_by_key(|row| row.target);
    rows.iter().map(|row| row.warm_tokens.total()).collect()
}

#[test]
#[contract("V28")]
fn replicas_without_events_share_their_predictions() {
    for policy in [Policy::CacheAware, Policy::Warm] {
        let [here, there] = [1, 2].map(|_| without_events(2, policy));
        let request = test_request(tokens(1, 10));
        let id = here.fleet.plan(at_ms(0), &request).reservation;
        sync(at_ms(1), &here, peer(1), &there);
        here.router().done(at_ms(50), id);
        sync(at_ms(51), &here, peer(1), &there);
        let expected = warm_tokens(&here.fleet, &request, 52);
        assert_eq!(expected.iter().sum::<u32>(), 160);
        assert_eq!(warm_tokens(&there.fleet, &request, 52), expected);
    }
}

#[test]
fn a_prediction_ends_with_a_peers_attempt_that_never_reached_its_worker() {
    let [here, there] = [1, 2].map(|_| without_events(2, Policy::CacheAware));
    let request = test_request(tokens(1, 10));
    let id = here.fleet.plan(at_ms(0), &request).reservation;
    sync(at_ms(1), &here, peer(1), &there);
    here.router()
        .end_attempt(at_ms(2), id, AttemptEnd::NotTaken);
    sync(at_ms(3), &here, peer(1), &there);
    assert_eq!(warm_tokens(&there.fleet, &request, 4), [0, 0]);
}

#[test]
fn blocks_of_a_peers_request_stay_in_use_only_if_it_reached_its_worker() {
    let settings = || RoutingSettings {
        section: RoutingSection {
            admission: AdmissionMode::LiveSet,
            ..RoutingSection::default()
        },
        ..RoutingSettings::default()
    };
    for (end, in_use) in [(AttemptEnd::Complete, 40), (AttemptEnd::NotTaken, 0)] {
        let [here, there] = [1, 2].map(|_| Replica::new(1, settings(), 100));
        let request = test_request(tokens(1, 40));
        let id = here.fleet.plan(at_ms(0), &request).reservation;
        sync(at_ms(1), &here, peer(1), &there);
        here.router().end_attempt(at_ms(2), id, end);
        sync(at_ms(3), &here, peer(1), &there);
        let live = [&here, &there].map(|replica| {
            let report = replica.router().admission_report(at_ms(4), 10);
            report.targets[0].live_blocks
        });
        assert_eq!(live, [in_use, in_use], "{end:?}");
    }
}
