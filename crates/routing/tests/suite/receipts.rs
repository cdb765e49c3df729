//! The form of a receipt, and the retention of receipts.

use std::time::Duration;

use kv_blocks::{Tier, WorkerId};
use proptest::prelude::*;
use routing::{
    DecisionsSection, Dispatch, ExcludeReason, ExcludedTarget, Pin, Policy, Refusal, RoomWait,
    SloTargets, WaitReason,
    receipt::{
        Attempt, AttemptClass, AttemptResult, ClusterNote, DecisionId, DecisionIds, OutcomeKind,
        PromptNote, PromptSource, QueueWait, Receipt, ReceiptFilter, ReceiptRing, RequestNote,
        RequestOutcome, RouterAnswer, RouterTiming,
    },
};
use serde_json::{Value, json};

use crate::{
    fetch::fetching,
    fleet::{TestFleet, TestRequest, at_ms, target, test_request, tokens},
};

fn receipt(id: u64, verdict: RouterAnswer) -> Receipt {
    Receipt {
        id: DecisionId(id),
        at_unix_ms: 1_795_196_469_123,
        request: RequestNote {
            id: "req-1".into(),
            tenant: "default".into(),
            route: "/v1/chat/completions",
            model: "qwen".into(),
            served_model: Some("qwen".into()),
            lora: None,
            stream: true,
            body_streamed: false,
            priority: 0,
        },
        dry_run: false,
        cluster: None,
        prompt: PromptNote {
            source: PromptSource::Tokens,
            tokens: 165,
            new_tokens: 165,
        },
        verdict,
        hold: QueueWait::default(),
        attempts: Vec::new(),
        timing: RouterTiming {
            accept: 6.0,
            total: 45.5,
            ..RouterTiming::default()
        },
        rewrites: Vec::new(),
        outcome: None,
    }
}

fn decided(fleet: &TestFleet, request: &TestRequest) -> RouterAnswer {
    RouterAnswer::Decided(Box::new(fleet.plan(at_ms(0), request).decision))
}

fn outcome(cached_tokens: Option<u32>) -> RequestOutcome {
    RequestOutcome {
        kind: OutcomeKind::Ok,
        status: Some(200),
        ttft_ms: Some(40.5),
        duration_ms: 812.0,
        prompt_tokens: Some(165),
        completion_tokens: Some(96),
        cached_tokens,
        finish_reason: Some("stop".into()),
    }
}

fn attempt(n: u32) -> Attempt {
    Attempt {
        n,
        target: target(1),
        name: "w1".into(),
        class: Some(AttemptClass::C0),
        result: AttemptResult::ConnectFailed,
        status: None,
        ms: 1.0,
    }
}

#[test]
fn a_read_from_another_worker_is_shown_with_its_source_and_its_terms() {
    let fleet = fetching(2, 1_000_000);
    fleet.stored(1, &tokens(1, 500), Tier::Device);
    let request = test_request(tokens(1, 500));
    let receipt = receipt(1, decided(&fleet, &request));
    let shown: Value = serde_json::to_value(&receipt).unwrap();
    let row = |worker: &str| {
        let mut rows = shown["candidates"].as_array().unwrap().iter();
        rows.find(|row| row["target"]["worker"] == worker).unwrap()
    };
    assert!(row("w1").get("fetch").is_none(), "it holds them");
    let reader = row("w2");
    let fetch = &reader["fetch"];
    assert_eq!(fetch["source"], json!({"worker": "w1", "dp_rank": 0}));
    assert_eq!(fetch["tokens"], 499 * 16);
    assert!(fetch["ms"].as_f64() > Some(0.0), "{fetch}");
    assert_eq!(
        (
            &reader["predicted_cached_tokens"],
            &reader["uncached_tokens"]
        ),
        (&json!(499 * 16), &json!(16))
    );
    assert_eq!(reader["warm_tokens"]["device"], 0);
    let terms = reader["terms"].as_object().unwrap();
    assert!(terms["fetch_ms"].as_f64() >= fetch["ms"].as_f64());
    assert_eq!(terms["displaced_ms"], 0.0);
    assert!(row("w1")["terms"].get("fetch_ms").is_none());
}

#[test]
fn a_receipt_has_every_field_in_its_order() {
    let mut fleet = TestFleet::with(2, Policy::Warm);
    fleet.stored(1, &tokens(1, 10), Tier::Device);
    fleet.excluded = vec![ExcludedTarget {
        target: target(9),
        name: "w9".into(),
        reason: ExcludeReason::Draining,
    }];
    let mut prompt = tokens(1, 10);
    prompt.extend(0..5);
    let mut receipt = receipt(
        0x5f3c_9a12_0000_0042,
        decided(&fleet, &test_request(prompt)),
    );
    receipt.attempts.push(attempt(1));
    receipt.outcome = Some(outcome(Some(160)));
    receipt.cluster = Some(ClusterNote {
        name: "coding".into(),
        similarity: Some(0.75),
    });

    let text = serde_json::to_string(&receipt).unwrap();
    let shown: Value = serde_json::from_str(&text).unwrap();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        keys(&shown),
        "schema id at request_id tenant dry_run route model served_model lora session cluster stream priority policy \
         method prompt candidates candidates_total excluded winner runner_up regret_ms prefill hold reserved attempts timing_us \
         rewrites outcome"
    );
    assert_eq!(
        keys(&shown["prompt"]),
        "source exact tokens blocks block_size new_tokens"
    );
    assert_eq!(
        keys(&shown["candidates"][0]),
        "target rank warm_tokens predicted_cached_tokens uncached_tokens cache_source stream_state health load cost \
         cost_unit predicted_ttft_ms terms"
    );
    assert_eq!(
        shown["cluster"],
        json!({"name": "coding", "similarity": 0.75})
    );
    assert_eq!(
        keys(&shown["timing_us"]),
        "accept cache render tokenize hash lookup decide total"
    );
    assert_eq!(
        keys(&shown["outcome"]),
        "kind status ttft_ms duration_ms prompt_tokens completion_tokens cached_tokens drift_tokens finish_reason"
    );
    for term in [
        "prefill_ms",
        "queue_ms",
        "decode_slowdown_ms",
        "reload_ms",
        "eviction_ms",
        "spread_ms",
    ] {
        assert!(shown["candidates"][0]["terms"][term].is_number(), "{term}");
    }
    let w1 = json!({"worker": "w1", "dp_rank": 0});
    let want = [
        ("schema", json!("warmroute.receipt/1")),
        ("id", json!("5f3c9a1200000042")),
        ("at", json!("2026-11-20T17:41:09.123Z")),
        ("policy", json!("warm")),
        ("method", json!("policy")),
        ("lora", Value::Null),
        ("prefill", Value::Null),
        ("candidates_total", json!(2)),
        (
            "excluded",
            json!([{"target": {"worker": "w9", "dp_rank": 0}, "reason": "draining"}]),
        ),
        ("winner", w1.clone()),
        ("runner_up", json!({"worker": "w2", "dp_rank": 0})),
        ("hold", json!({"held_ms": 0.0, "reason": null})),
        (
            "reserved",
            json!({"prefill_tokens": 5, "decode_blocks": 11}),
        ),
        (
            "attempts",
            json!([{"n": 1, "target": w1, "class": "C0", "result": "connect_failed", "status": null, "ms": 1.0}]),
        ),
        ("rewrites", json!([])),
    ];
    for (field, value) in want {
        assert_eq!(shown[field], value, "{field}");
    }
    let first = &shown["candidates"][0];
    assert_eq!(
        first["warm_tokens"],
        json!({"device": 160, "host": 0, "disk": 0, "remote": 0, "speculative": 0})
    );
    assert_eq!(
        (&first["predicted_cached_tokens"], &first["uncached_tokens"]),
        (&json!(160), &json!(5))
    );
    assert_eq!(
        first["load"],
        json!({"in_flight": 0, "queued_prefill_tokens": 0, "decode_sequences": 0, "decode_blocks": 0})
    );
    assert_eq!(shown["outcome"]["drift_tokens"], json!(0));
    let regret = shown["candidates"][1]["cost"].as_f64().unwrap() - first["cost"].as_f64().unwrap();
    assert!((shown["regret_ms"].as_f64().unwrap() - regret).abs() < 1e-9);
}

#[test]
fn a_receipt_says_why_its_request_waited_for_room() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let mut receipt = receipt(1, decided(&fleet, &test_request(tokens(1, 3))));
    let mut wait = RoomWait {
        target: target(2),
        live_blocks: 890,
        capacity: 922,
        needed_blocks: 86,
        keep: Duration::from_secs(81),
        ahead: 4,
        expected: Duration::from_secs(95),
    };
    for (worker, name) in [(2, "w2"), (9, "a worker")] {
        wait.target = target(worker);
        receipt.hold = QueueWait {
            held_ms: 9000.0,
            reason: Some(WaitReason::Room),
            room: Some(Box::new(wait)),
        };
        let shown = serde_json::to_value(&receipt).unwrap();
        let sentence = format!(
            "waiting for room: {name} holds 890 of 922 blocks in use within 81 s, needs 86; 4 ahead; \
             expected wait 95 s"
        );
        assert_eq!(
            shown["hold"],
            json!({"held_ms": 9000.0, "reason": "room", "room": sentence})
        );
    }
}

#[test]
fn a_receipt_has_the_targets_of_its_request_and_the_headroom_if_there_are_any() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let mut request = test_request(tokens(1, 3));
    let plain = serde_json::to_value(receipt(1, decided(&fleet, &request))).unwrap();
    assert!(plain.get("slo").is_none());
    request.slo.targets = SloTargets {
        ttft: Some(Duration::from_millis(500)),
        tpot: None,
    };
    let shown = serde_json::to_value(receipt(1, decided(&fleet, &request))).unwrap();
    let slo = &shown["slo"];
    assert_eq!(slo["ttft_target_ms"], json!(500.0));
    assert_eq!(slo["tpot_target_ms"], Value::Null);
    let number = |name: &str| slo[name].as_f64().unwrap();
    let sum = number("predicted_ttft_ms") + number("headroom_ms");
    assert!((sum - 500.0).abs() < 1e-6, "{slo}");

    // Of a refused request: the prediction that misses the target.
    let RouterAnswer::Decided(decision) = decided(&fleet, &request) else {
        panic!("a worker is free");
    };
    let refusal = Refusal {
        policy: Policy::Warm,
        excluded: Vec::new(),
        queue_full: None,
        no_room: None,
        slo_miss: decision.winner.slo.map(Box::new),
    };
    let answer = RouterAnswer::Refused(Box::new(refusal));
    let refused = serde_json::to_value(receipt(1, answer)).unwrap();
    assert_eq!(refused["slo"]["ttft_target_ms"], json!(500.0));
}

#[test]
fn a_cost_without_a_time_model_has_no_regret_and_no_forecast() {
    let fleet = TestFleet::with(2, Policy::RoundRobin);
    let shown =
        serde_json::to_value(receipt(1, decided(&fleet, &test_request(tokens(1, 3))))).unwrap();
    assert_eq!(shown["regret_ms"], Value::Null);
    assert_eq!(shown["candidates"][0]["predicted_ttft_ms"], Value::Null);
    assert_eq!(shown["candidates"][0]["cost_unit"], json!("rank"));
    assert_eq!(shown["outcome"], Value::Null);
}

#[test]
fn a_refusal_is_a_receipt_without_a_winner() {
    let mut fleet = TestFleet::with(1, Policy::Warm);
    fleet.excluded = vec![ExcludedTarget {
        target: target(1),
        name: "w1".into(),
        reason: ExcludeReason::Unhealthy,
    }];
    fleet.candidates.clear();
    let Dispatch::Refused(refusal) = fleet.dispatch(at_ms(0), &test_request(tokens(1, 3))) else {
        panic!("no candidate is left")
    };
    let shown = serde_json::to_value(receipt(1, RouterAnswer::Refused(Box::new(refusal)))).unwrap();
    assert_eq!(
        (&shown["winner"], &shown["candidates"]),
        (&Value::Null, &json!([]))
    );
    assert_eq!(shown["excluded"][0]["reason"], json!("unhealthy"));
}

#[test]
fn drift_is_predicted_minus_actual_cached_tokens() {
    let fleet = TestFleet::with(1, Policy::Warm);
    fleet.stored(1, &tokens(1, 11), Tier::Device);
    let mut receipt = receipt(1, decided(&fleet, &test_request(tokens(1, 11))));
    receipt.outcome = Some(outcome(Some(200)));
    assert_eq!(
        serde_json::to_value(&receipt).unwrap()["outcome"]["drift_tokens"],
        json!(-40)
    );
    receipt.outcome = Some(outcome(None));
    assert_eq!(
        serde_json::to_value(&receipt).unwrap()["outcome"]["drift_tokens"],
        Value::Null
    );
}

#[test]
fn decision_ids_are_unique_and_round_trip() {
    let ids = DecisionIds::new(0xdead_beef_1234_5678);
    let (first, second) = (ids.next_id(), ids.next_id());
    assert_eq!(
        (first.to_string(), second.to_string()),
        ("deadbeef00000001".into(), "deadbeef00000002".into())
    );
    assert_eq!("deadbeef00000002".parse(), Ok(second));
    for wrong in [
        "",
        "DEADBEEF00000002",
        "deadbeef0000002",
        "+eadbeef00000002",
        "deadbeef00000002 ",
    ] {
        assert!(wrong.parse::<DecisionId>().is_err(), "{wrong:?}");
    }
}

#[test]
fn the_ring_lists_the_newest_first_through_its_filter() {
    let fleet = TestFleet::with(2, Policy::Warm);
    let ring = ReceiptRing::new(DecisionsSection::default());
    for i in 1..=6u64 {
        let worker = if i % 2 == 0 { 1 } else { 2 };
        let policy = if i <= 3 {
            Policy::Warm
        } else {
            Policy::KvAware
        };
        let pin = Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        });
        let request = TestRequest {
            pin,
            policy: Some(policy),
            ..test_request(tokens(1, 3))
        };
        let mut receipt = receipt(i, decided(&fleet, &request));
        if i == 2 {
            receipt.request.tenant = "other".into();
        }
        ring.push(receipt);
    }
    let listed = |filter: ReceiptFilter, limit| {
        ring.list(&filter, limit)
            .iter()
            .map(|kept| kept.id.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(ReceiptFilter::default(), 100), [6, 5, 4, 3, 2, 1]);
    assert_eq!(listed(ReceiptFilter::default(), 2), [6, 5]);
    assert_eq!(
        listed(
            ReceiptFilter {
                worker: Some("w1".into()),
                ..ReceiptFilter::default()
            },
            100
        ),
        [6, 4, 2]
    );
    assert_eq!(
        listed(
            ReceiptFilter {
                worker: Some("w1".into()),
                tenant: Some("other".into()),
                policy: None
            },
            100
        ),
        [2]
    );
    assert_eq!(
        listed(
            ReceiptFilter {
                policy: Some(Policy::KvAware),
                ..ReceiptFilter::default()
            },
            100
        ),
        [6, 5, 4]
    );
}

#[test]
fn a_change_reaches_the_stored_receipt_and_not_copies_already_read() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let ring = ReceiptRing::new(DecisionsSection::default());
    ring.push(receipt(1, decided(&fleet, &test_request(tokens(1, 3)))));
    let early = ring.get(DecisionId(1)).unwrap();
    assert!(ring.update(DecisionId(1), |receipt| {
        receipt.attempts.push(attempt(1));
        receipt.outcome = Some(outcome(Some(16)));
    }));
    assert!(!ring.update(DecisionId(2), |receipt| panic!("never kept: {receipt:?}")));
    let settled = ring.get(DecisionId(1)).unwrap();
    assert_eq!(settled.outcome, Some(outcome(Some(16))));
    assert_eq!(settled.attempts.len(), 1);
    assert_eq!(
        (early.attempts.len(), &early.outcome),
        (0, &None),
        "a read copy does not change"
    );
}

#[test]
fn a_change_cannot_rename_a_receipt() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let ring = ReceiptRing::new(DecisionsSection::default());
    ring.push(receipt(1, decided(&fleet, &test_request(tokens(1, 3)))));
    assert!(ring.update(DecisionId(1), |receipt| receipt.id = DecisionId(7)));
    assert_eq!(ring.get(DecisionId(1)).unwrap().id, DecisionId(1));
}

proptest! {
    #[test]
    fn the_receipt_ring_never_exceeds_its_limits_and_keeps_the_latest(
        entries in 0usize..8,
        bytes in 0usize..20_000,
        growths in prop::collection::vec((0u64..30, 0u32..5), 0..40),
    ) {
        let fleet = TestFleet::with(3, Policy::Warm);
        let verdict = decided(&fleet, &test_request(tokens(1, 3)));
        let ring = ReceiptRing::new(DecisionsSection {
            ring_entries: entries,
            ring_bytes: bytes,
            ..DecisionsSection::default()
        });
        for (i, (back, attempts)) in growths.into_iter().enumerate() {
            let id = i as u64 + 1;
            ring.push(receipt(id, verdict.clone()));
            for n in 0..attempts {
                ring.update(DecisionId(id.saturating_sub(back)), |receipt| receipt.attempts.push(attempt(n)));
            }
            prop_assert!(ring.len() <= entries && ring.bytes() <= bytes);
            let kept: Vec<u64> = ring.list(&ReceiptFilter::default(), 100).iter().map(|kept| kept.id.0).collect();
            let latest: Vec<u64> = (1..=id).rev().take(kept.len()).collect();
            prop_assert_eq!(&kept, &latest);
            for old in 1..=id {
                prop_assert_eq!(ring.get(DecisionId(old)).is_some(), kept.contains(&old));
            }
        }
    }
}
