//! `lmetric`, `sticky` and `dualmap`: policies to compare others with.

use std::collections::HashSet;

use kv_blocks::{Moment, Tier, WorkerId};
use routing::{Decision, Overrides, Pin, Policy, ScoredCandidate};

use crate::fleet::{TestFleet, TestRequest, in_session, target, test_request, tokens};

const NOW: Moment = Moment::START;

fn row(decision: &Decision, worker: u32) -> &ScoredCandidate {
    decision
        .candidates
        .iter()
        .find(|row| row.target == target(worker))
        .expect("it is a candidate")
}

/// Puts a prompt of 16,000 tokens that nothing else shares in a worker's queue.
fn load(fleet: &TestFleet, worker: u32, topic: u32) {
    let pin = Some(Pin {
        worker: WorkerId(worker),
        rank: None,
    });
    fleet.plan(
        NOW,
        &TestRequest {
            pin,
            ..test_request(tokens(topic, 1_000))
        },
    );
}

#[test]
fn lmetric_multiplies_the_tokens_to_compute_by_the_requests_in_flight() {
    let fleet = TestFleet::with(2, Policy::Lmetric);
    fleet.stored(1, &tokens(1, 10), Tier::Device);
    let costs = |decision: &Decision| [1, 2].map(|worker| row(decision, worker).cost);

    let first = fleet.plan(NOW, &test_request(tokens(1, 20)));
    assert_eq!(costs(&first.decision), [160.0, 320.0]);
    assert_eq!(first.decode.target, target(1));

    let second = fleet.plan(NOW, &test_request(tokens(2, 20)));
    assert_eq!(costs(&second.decision), [(160.0 + 320.0) * 2.0, 320.0]);
    assert_eq!(second.decode.target, target(2));

    fleet.router.first_token(NOW, first.reservation);
    let third = fleet.plan(NOW, &test_request(tokens(3, 20)));
    assert_eq!(costs(&third.decision), [320.0 * 2.0, 640.0 * 2.0]);
    assert_eq!(third.decode.target, target(1));
}

#[test]
fn sticky_keeps_four_fifths_of_a_prompt_until_fourteen_seconds_of_tokens_are_queued() {
    let fleet = TestFleet::with(2, Policy::Sticky);
    fleet.stored(1, &tokens(1, 80), Tier::Device);
    let warm = test_request(tokens(1, 100));
    let colder = test_request(tokens(1, 101));
    let without_caches = TestRequest {
        overrides: Overrides {
            overlap_weight: Some(0.0),
            ..Overrides::default()
        },
        ..warm.clone()
    };
    let goes = |request: &TestRequest| fleet.would_go_to(request).to_string();
    assert_eq!([goes(&warm), goes(&colder)], ["w1", "w1"]);
    // Nothing is learned yet: 7,000 tokens are a second.
    for topic in 10..16 {
        load(&fleet, 1, topic);
        let all = [goes(&warm), goes(&colder), goes(&without_caches)];
        assert_eq!(all, ["w1", "w2", "w2"], "{topic}");
    }
    load(&fleet, 1, 16);
    assert_eq!(goes(&warm), "w2", "112,000 tokens are 16 seconds");
}

#[test]
fn dualmap_keeps_each_session_on_two_of_all_targets() {
    let fleet = TestFleet::with(6, Policy::Dualmap);
    let mut used = HashSet::new();
    for key in 0..1_000 {
        let decision = fleet.preview(NOW, &in_session(key)).unwrap();
        let mapped = |number: f64| {
            let rows = decision.candidates.iter();
            let of_number = rows.filter(|row| row.terms.get("mapped") == Some(number));
            of_number.map(|row| row.target).collect::<Vec<_>>()
        };
        let (first, second) = (mapped(1.0), mapped(2.0));
        assert_eq!((first.len(), second.len()), (1, 1), "{key}");
        assert_eq!(decision.winner.target, first[0], "{key}");
        used.insert((first[0], second[0]));
    }
    assert_eq!(used.len(), 6 * 5, "every pair");
}

#[test]
fn dualmap_prefers_the_warmer_of_two_then_the_faster_and_leaves_both_at_ten_seconds() {
    let fleet = TestFleet::with(4, Policy::Dualmap);
    let request = TestRequest {
        affinity: in_session(5).affinity,
        ..test_request(tokens(1, 100))
    };
    let decide = || fleet.preview(NOW, &request).unwrap();
    let before = decide();
    let of_number = |number: f64| {
        let mut rows = before.candidates.iter();
        let row = rows.find(|row| row.terms.get("mapped") == Some(number));
        row.unwrap().target.worker.0
    };
    let (first, second) = (of_number(1.0), of_number(2.0));
    assert_eq!(before.winner.target, target(first));

    fleet.stored(second, &tokens(1, 100), Tier::Device);
    assert_eq!(decide().winner.target, target(second));

    let ttft_ms = |decision: &Decision, worker| row(decision, worker).predicted_ttft_ms.unwrap();
    let mut topic = 100;
    let mut loaded = |worker: u32, most_ms: f64| {
        while ttft_ms(&decide(), worker) <= most_ms && topic < 200 {
            load(&fleet, worker, topic);
            topic += 1;
        }
        decide()
    };
    let slow = loaded(second, 5_000.0);
    assert_eq!(slow.winner.target, target(first));
    assert_eq!(row(&slow, first).terms.get("hotspot"), Some(0.0));

    loaded(second, 10_000.0);
    let hot = loaded(first, 10_000.0);
    assert_eq!(row(&hot, first).terms.get("hotspot"), Some(1.0));
    let elsewhere = hot.winner.target.worker.0;
    assert!(elsewhere != first && elsewhere != second, "{elsewhere}");
}
