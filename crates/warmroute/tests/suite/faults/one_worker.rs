//! A fleet of one worker: a retry goes to that worker.

use contract_id::contract;

use super::fleet::{ScriptedFleet, SimulatedRouter, attempts, fine};
use crate::harness::{RouterQueries as _, ScriptedReply, SimControls as _, chat, json_reply};

#[test]
#[contract("CH10")]
fn a_503_is_retried_on_the_only_worker_after_a_pause() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    scripted.engines[0].once(ScriptedReply::whole(json_reply(
        "503 Full",
        "retry-after: 1\r\n",
        "{}",
    )));
    let reply = scripted.post(&chat("m", "hi", 1));
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, r#"{"id":"fine"}"#)
    );
    assert_eq!(
        attempts(&scripted.router.receipt_of(&reply)),
        [(Some("C2"), "status"), (None, "ok")]
    );
    scripted.router.wait_until_idle();
}

#[test]
#[contract("CH10", "I4")]
fn a_reset_is_retried_on_the_only_worker_and_three_resets_are_reported() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events", "--speed", "20"], "");
    fleet.engines[0].fault("reset", 2);
    let reply = fleet.post(&chat("sim", "hi", 2));
    assert_eq!(reply.status, 200);
    assert_eq!(attempts(&fleet.router.receipt_of(&reply)).len(), 3);
    fleet.engines[0].fault("reset", 9);
    let reply = fleet.post(&chat("sim", "hi", 2));
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (502, "upstream_reset")
    );
    assert_eq!(attempts(&fleet.router.receipt_of(&reply)).len(), 3);
    assert_eq!(fleet.engines[0].stats()["executions"], 1);
    fleet.router.wait_until_idle();
}

#[test]
fn a_429_and_a_500_are_not_retried_on_the_only_worker() {
    for status in ["429 Slow down", "500 Oops"] {
        let scripted = ScriptedFleet::one(ScriptedReply::whole(json_reply(status, "", "{}")), "");
        assert_eq!(
            scripted.post(&chat("m", "hi", 1)).status.to_string(),
            &status[..3]
        );
        assert_eq!(scripted.requests(), 1);
    }
}
