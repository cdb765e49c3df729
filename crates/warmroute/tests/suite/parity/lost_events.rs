//! Events that never arrive: the drift is real, and fetching them anew repairs it.

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

/// `corrupt:N`: the next so many batches of events are unreadable.
fn disturb(routed: &RoutedFleet, action: &str) {
    let body = json!({"action": action}).to_string();
    assert_eq!(
        RawClient::post(&routed.engines[0].data(), "/sim/events", body.as_bytes()).status,
        200
    );
}

/// Somebody else's requests push everything out of the engine's cache, and the events that say so are unreadable.
fn evict_unnoticed(routed: &RoutedFleet, round: usize) {
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

/// Until the worker is in this state, or for twenty rounds.
fn until(routed: &RoutedFleet, state: &str, mut round: impl FnMut(usize)) {
    for n in 0..20 {
        round(n);
        if parity(routed)["state"] == state {
            return;
        }
    }
    panic!("not {state}: {}", parity(routed));
}

/// A change of state is acted on right after it was found.
fn cache_source_is(routed: &RoutedFleet, source: &str) {
    eventually("the change to be acted on", || {
        (routed.worker("a")["cache_source"] == source).then_some(())
    });
}

/// A worker that lost its trust because removals never arrived.
fn downgraded(config: &str) -> RoutedFleet {
    let routed = RoutedFleet::with(&[&["--kv-blocks", "48"]], &format!("{CONFIG}{config}"), &[]);
    let kept = completion(&routed, "kept");
    assert_eq!(kept.predicted, kept.cached);
    until(&routed, "downgraded", |round| {
        evict_unnoticed(&routed, round);
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
fn a_stream_that_lost_removals_is_believed_again_once_it_was_fetched_anew() {
    // The replay has what the live stream spoiled.
    let routed = downgraded("");
    until(&routed, "ok", |_| drop(completion(&routed, "kept")));
    cache_source_is(&routed, "events");
    let after = completion(&routed, "kept");
    assert_eq!(after.predicted, after.cached);
    assert!(after.cached > 0);
}

#[test]
#[contract("F62")]
fn events_that_stay_wrong_are_not_believed_however_right_our_own_predictions_are() {
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
    // Of what it stores from now on it tells the truth.
    until(&routed, "ok", |round| {
        completion(&routed, &format!("fresh{round}"));
        completion(&routed, &format!("fresh{round}"));
    });
    cache_source_is(&routed, "events");
}
