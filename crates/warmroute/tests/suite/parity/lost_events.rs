//! Events that never arrive: the drift is real, and a replay repairs it.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{RawClient, RoutedFleet, RoutedReply, eventually, words};

const CONFIG: &str = "parity: {min_joined: 6}\n";

fn parity(routed: &RoutedFleet) -> Value {
    RawClient::get(&routed.router.admin(), "/admin/parity").json()["workers"][0].clone()
}

fn completion(routed: &RoutedFleet, topic: &str) -> RoutedReply {
    routed.completion(json!({"prompt": words(topic, 60)}), &[])
}

/// `corrupt:N`: the next N batches of events are unreadable.
fn disturb(routed: &RoutedFleet, action: &str) {
    let body = json!({"action": action}).to_string();
    assert_eq!(
        RawClient::post(&routed.engines[0].data(), "/sim/events", body.as_bytes()).status,
        200
    );
}

/// Direct requests push everything out of the engine's cache, and the events about it are
/// unreadable.
fn evict_silently(routed: &RoutedFleet, round: usize) {
    disturb(routed, "corrupt:1000");
    for filler in 0..4 {
        let prompt = words(&format!("filler{round}x{filler}y"), 60);
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1}).to_string();
        assert_eq!(
            RawClient::post(
                &routed.engines[0].data(),
                "/v1/completions",
                body.as_bytes()
            )
            .status,
            200
        );
    }
    routed.caught_up();
    disturb(routed, "corrupt:0");
}

/// Repeats `round` until the worker is in this state, at most twenty times.
fn until(routed: &RoutedFleet, state: &str, mut round: impl FnMut(usize)) {
    for n in 0..20 {
        round(n);
        if parity(routed)["state"] == state {
            return;
        }
    }
    panic!("not {state}: {}", parity(routed));
}

/// The cache source follows a change of state with a short delay.
fn cache_source_is(routed: &RoutedFleet, source: &str) {
    eventually("the change to take effect", || {
        (routed.worker("a")["cache_source"] == source).then_some(())
    });
}

/// A worker that lost its trust because removals never arrived.
fn downgraded(config: &str) -> RoutedFleet {
    let routed = RoutedFleet::with(&[&["--kv-blocks", "48"]], &format!("{CONFIG}{config}"), &[]);
    let cached = completion(&routed, "kept");
    assert_eq!(cached.predicted, cached.cached);
    until(&routed, "downgraded", |round| {
        evict_silently(&routed, round);
        completion(&routed, "kept");
    });
    let row = parity(&routed);
    assert!(
        row["predicted_tokens"].as_u64() > row["actual_tokens"].as_u64(),
        "{row}"
    );
    cache_source_is(&routed, "predicted");
    eventually("the stream to be live again", || {
        (routed.streams()[0]["state"] == "live").then_some(())
    });
    routed
}

#[test]
fn a_stream_that_lost_removals_is_trusted_again_after_a_replay() {
    // The replay has the batches that were corrupt on the live stream.
    let routed = downgraded("");
    until(&routed, "ok", |_| drop(completion(&routed, "kept")));
    cache_source_is(&routed, "events");
    let after = completion(&routed, "kept");
    assert_eq!(after.predicted, after.cached);
    assert!(after.cached > 0);
}

#[test]
#[contract("F62")]
fn events_that_stay_wrong_are_not_trusted_even_while_predictions_are_right() {
    let routed = downgraded("kv_events: {replay: false}\n");
    disturb(&routed, "corrupt:1000");
    completion(&routed, "unsaid");
    for _ in 0..10 {
        let turn = completion(&routed, "unsaid");
        assert_eq!(turn.predicted, turn.cached);
        assert!(turn.cached > 0);
    }
    assert_eq!(
        parity(&routed)["state"],
        "downgraded",
        "{}",
        parity(&routed)
    );
    disturb(&routed, "corrupt:0");
    // Events of later blocks are correct again.
    until(&routed, "ok", |round| {
        completion(&routed, &format!("fresh{round}"));
        completion(&routed, &format!("fresh{round}"));
    });
    cache_source_is(&routed, "events");
}
