//! Policies `composite` and `continuum`: score, ring and fallback.

use std::sync::Arc;

use contract_id::contract;
use kv_blocks::{Moment, Tier};
use routing::{Decision, Method, Policy, PrefixHolder, PrefixRoutingSection, RoutingSettings};

use crate::fleet::{TestFleet, TestRequest, at_ms, test_request, tokens, with_prefix};

const NOW: Moment = Moment::START;

fn holder(worker: &str, tokens: u32, hot: bool) -> PrefixHolder {
    PrefixHolder {
        worker: Arc::from(worker),
        tokens,
        hot,
    }
}

/// A prompt of 160 tokens whose prefix these holders have.
fn with_holders(holders: &[PrefixHolder]) -> TestRequest {
    TestRequest {
        prefix_holders: Some(holders.to_vec()),
        affinity: with_prefix(7).affinity,
        ..test_request(tokens(1, 10))
    }
}

fn decided(fleet: &TestFleet, request: &TestRequest) -> Decision {
    fleet.preview(NOW, request).expect("a target is eligible")
}

fn score(decision: &Decision, worker: &str) -> f64 {
    1.0 - decision
        .candidates
        .iter()
        .find(|row| *row.name == *worker)
        .expect("a candidate")
        .cost
}

#[test]
#[contract("CK57", "CK58", "CK61", "CK64")]
fn the_score_combines_cache_load_and_health_and_the_receipt_shows_it() {
    let fleet = TestFleet::with(3, Policy::Composite);
    let of = with_holders(&[
        holder("w1", 160, true),
        holder("w2", 160, false),
        holder("w3", 40, true),
    ]);
    // One more request in flight on the first, and one of two requests failed on the third.
    fleet.plan(
        NOW,
        &TestRequest {
            pin: Some(pin(1)),
            ..of.clone()
        },
    );
    let lost = fleet.plan(
        NOW,
        &TestRequest {
            pin: Some(pin(3)),
            ..of.clone()
        },
    );
    fleet.router.failed(NOW, lost.reservation);
    let first = fleet.plan(
        NOW,
        &TestRequest {
            pin: Some(pin(3)),
            ..of.clone()
        },
    );
    fleet.router.done(NOW, first.reservation);

    let decision = decided(&fleet, &of);
    for (worker, expected) in [
        // 0.6 * 1 * 1 + 0.3 * (1 - 1/1) + 0.1 * 1
        ("w1", 0.7),
        // 0.6 * 1 * 0.6 + 0.3 * 1 + 0.1 * 1
        ("w2", 0.76),
        // 0.6 * 0.25 * 1 + 0.3 * 1 + 0.1 * 1/2
        ("w3", 0.5),
    ] {
        assert!(
            (score(&decision, worker) - expected).abs() < 1e-9,
            "{worker}: {}",
            score(&decision, worker)
        );
    }
    assert_eq!(
        (&*decision.winner.name, decision.method, decision.label),
        ("w2", Method::Policy, Some("kv_aware"))
    );
    let winner = decision.winning().expect("it is kept");
    assert_eq!(
        (winner.terms.get("cached_tokens"), winner.terms.get("hot")),
        (Some(160.0), Some(0.0))
    );
}

#[test]
#[contract("CK62", "CK64", "A4")]
fn below_the_threshold_the_ring_decides_for_continuum_and_the_fallback_for_composite() {
    let little = with_holders(&[holder("w1", 47, true)]);
    let enough = with_holders(&[holder("w1", 48, true)]);
    let nobody = with_holders(&[]);
    let keyless = TestRequest {
        affinity: Default::default(),
        ..little.clone()
    };

    let composite = TestFleet::with(4, Policy::Composite);
    for request in [&little, &nobody, &keyless] {
        let decision = decided(&composite, request);
        assert_eq!(
            (decision.method, decision.label),
            (Method::Fallback, Some("fallback"))
        );
        assert!(
            decision
                .candidates
                .iter()
                .all(|row| row.terms.get("fallback") == Some(1.0))
        );
    }
    assert_eq!(
        decided(&composite, &enough).candidates[0]
            .terms
            .get("fallback"),
        None
    );
    assert_eq!(decided(&composite, &enough).label, Some("kv_aware"));

    let continuum = TestFleet::with(4, Policy::Continuum);
    let ring = TestFleet::with(4, Policy::PrefixHash);
    for request in [&little, &nobody] {
        let decision = decided(&continuum, request);
        assert_eq!(
            (decision.method, decision.label),
            (Method::Policy, Some("prefix_hash"))
        );
        assert_eq!(decision.winner.name, decided(&ring, request).winner.name);
    }
    assert_eq!(decided(&continuum, &keyless).method, Method::Fallback);
    let decision = decided(&continuum, &enough);
    assert_eq!(
        (&*decision.winner.name, decision.label),
        ("w1", Some("kv_aware"))
    );
    // Without the ring the score decides, or the fallback.
    let scorer_only = TestFleet::new(
        4,
        RoutingSettings {
            policy: Policy::Continuum,
            prefix_routing: PrefixRoutingSection::default(),
            ..RoutingSettings::default()
        },
    );
    assert_eq!(decided(&scorer_only, &enough).label, Some("kv_aware"));
    assert_eq!(decided(&scorer_only, &little).method, Method::Fallback);
    // Without prefix streams only the ring decides, whatever the block index contains.
    let ring_only = TestRequest {
        affinity: with_prefix(99).affinity,
        ..test_request(tokens(3, 10))
    };
    let owner: u32 = decided(&ring, &ring_only).winner.name[1..]
        .parse()
        .expect("a number");
    continuum.stored(owner % 4 + 1, &tokens(3, 10), Tier::Device);
    assert_eq!(
        decided(&continuum, &ring_only).winner.name,
        decided(&ring, &ring_only).winner.name
    );
}

#[test]
fn without_prefix_streams_the_block_index_provides_the_overlap() {
    let fleet = TestFleet::with(3, Policy::Composite);
    let prompt = tokens(5, 10);
    fleet.stored(2, &prompt[..64], Tier::Device);
    fleet.stored(3, &prompt, Tier::Disk);
    let decision = decided(&fleet, &test_request(prompt));
    // 0.6 * 64/160 + 0.4, and 0.6 * 0.6 + 0.4 (the last token counts here as cached).
    assert!(
        (score(&decision, "w2") - 0.64).abs() < 1e-9,
        "{}",
        score(&decision, "w2")
    );
    assert!(
        (score(&decision, "w3") - 0.76).abs() < 1e-9,
        "{}",
        score(&decision, "w3")
    );
    assert_eq!(&*decision.winner.name, "w3");
}

#[test]
fn the_health_of_a_removed_worker_is_dropped() {
    let fleet = TestFleet::with(2, Policy::Composite);
    let of = with_holders(&[holder("w1", 160, true), holder("w2", 160, true)]);
    let lost = fleet.plan(
        NOW,
        &TestRequest {
            pin: Some(pin(1)),
            ..of.clone()
        },
    );
    fleet.router.failed(NOW, lost.reservation);
    assert_eq!(&*decided(&fleet, &of).winner.name, "w2");
    fleet.router.forget(kv_blocks::WorkerId(1));
    let decision = decided(&fleet, &of);
    assert!((score(&decision, "w1") - score(&decision, "w2")).abs() < 1e-9);
    // Health also expires after a minute.
    let lost = fleet.plan(
        at_ms(0),
        &TestRequest {
            pin: Some(pin(1)),
            ..of.clone()
        },
    );
    fleet.router.failed(at_ms(0), lost.reservation);
    let later = fleet
        .preview(at_ms(61_000), &of)
        .expect("a target is eligible");
    assert!((score(&later, "w1") - score(&later, "w2")).abs() < 1e-9);
}

fn pin(worker: u32) -> routing::Pin {
    routing::Pin {
        worker: kv_blocks::WorkerId(worker),
        rank: None,
    }
}
