//! The success rate of a worker, as the policy `composite` reads it.

use contract_id::contract;
use serde_json::Value;

use super::fleet::SimulatedRouter;
use crate::harness::{Program, RawClient, RouterQueries as _, chat, streamed};

/// One engine behind a router whose receipts show the success rate.
fn scored_engine() -> SimulatedRouter {
    let engine = Program::engine(&["--no-kv-events", "--speed", "20"]);
    let yaml = "kv_cache_index: {scoring: {min_overlap_threshold: 0.0}}\n\
                retry: {max_attempts: 1}\n\
                request: {stream_idle_timeout: 2s}\n";
    let router = Program::serve_with(yaml, &[engine.url()], &["--policy", "composite"]).ready(1);
    SimulatedRouter {
        engines: vec![engine],
        router,
    }
}

/// Sends a request with this fault; returns the success rate that its decision read.
fn rate_before(fleet: &SimulatedRouter, fault: &str, body: &Value) -> f64 {
    fleet.fault(fault);
    let reply = fleet.post(body);
    fleet.fault("none");
    fleet.router.wait_until_idle();
    let receipt = fleet.router.receipt_of(&reply);
    receipt["candidates"][0]["terms"]["health"]
        .as_f64()
        .unwrap_or_else(|| panic!("a scored decision has the success rate: {receipt}"))
}

#[test]
#[contract("CK58")]
fn a_reply_that_fails_after_its_first_byte_counts_against_its_worker() {
    let fleet = scored_engine();
    let (plain, stream) = (chat("sim", "hi", 5), streamed(chat("sim", "hi", 20)));
    let (mut succeeded, mut counted) = (0, 0);
    // The fault, the request, and whether it counts as a success; `None`: it does not count.
    let steps: [(&str, &Value, Option<bool>); 13] = [
        ("none", &stream, Some(true)),
        ("reset_mid:2", &stream, Some(false)),
        ("none", &plain, Some(true)),
        ("stall_mid:2", &stream, Some(false)),
        ("none", &stream, Some(true)),
        ("error_mid:2", &stream, Some(false)),
        ("none", &stream, Some(true)),
        // It has its finish reason.
        ("no_done", &stream, Some(true)),
        ("429", &stream, None),
        ("none", &plain, Some(true)),
        ("500", &plain, Some(false)),
        ("none", &plain, Some(true)),
        ("none", &plain, Some(true)),
    ];
    for (fault, body, success) in steps {
        let expected = if counted == 0 {
            1.0
        } else {
            f64::from(succeeded) / f64::from(counted)
        };
        let rate = rate_before(&fleet, fault, body);
        assert!(
            (rate - expected).abs() < 1e-9,
            "before {fault}: {rate}, expected {succeeded} of {counted}"
        );
        counted += i32::from(success.is_some());
        succeeded += i32::from(success == Some(true));
    }
}

#[test]
#[contract("CK58")]
fn a_client_that_disconnects_is_no_verdict_on_its_worker() {
    let fleet = scored_engine();
    let long = streamed(chat("sim", "hi", 2_000));
    let mut client = RawClient::chat(&fleet.router.data(), &long);
    client.read_until("\n\n");
    drop(client);
    fleet.router.wait_until_idle();
    // Counted as a success it would leave the rate at 1/2 after the failure, not at 0.
    let stream = streamed(chat("sim", "hi", 20));
    for (fault, expected) in [("reset_mid:2", 1.0), ("none", 0.0)] {
        let rate = rate_before(&fleet, fault, &stream);
        assert!((rate - expected).abs() < 1e-9, "before {fault}: {rate}");
    }
}
