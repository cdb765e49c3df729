//! Events that are off, have another topic, or are unusable.

use std::sync::atomic::{AtomicU64, Ordering};

use contract_id::contract;
use serde_json::{Value, json};

use super::{
    front::{EngineFront, FrontBehavior},
    look::{DoctorRun, endpoint_of, engine, look_at, look_at_url, look_with},
    relay::{MessageChange, TestRelay, replaced},
};
use crate::harness::Program;

/// The engine's flags that turn events on.
const ON: &str = "start the engine with --kv-events-config '{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \
                  \"endpoint\": \"tcp://*:5557\", \"replay_endpoint\": \"tcp://*:5558\"}'";

#[test]
#[contract("G28", "V18")]
fn the_engine_publishes_no_events() {
    look_at(&engine(&["--no-kv-events"]), &[]).fails(&["w1"], "events_enabled", ON, &[]);
}

/// Events are on with the publisher that publishes nothing, as in releases before 0.12.
struct NullPublisher;

impl FrontBehavior for NullPublisher {
    fn reply(&self, path: &str, body: &mut Value) {
        if path == "/kv_event_sources" {
            *body = json!({"0": {"enable_kv_cache_events": true, "publisher": "null", "endpoint": "tcp://*:5557"}});
        }
    }
}

#[test]
#[contract("G28")]
fn the_engines_publisher_is_null() {
    let silent = engine(&["--no-kv-events"]);
    let front = EngineFront::of(&silent, NullPublisher);
    look_at_url(&front.url(), &[]).fails(&["w1"], "events_enabled", ON, &[]);
}

#[test]
#[contract("G28")]
fn the_router_follows_no_events() {
    let engine = engine(&[]);
    let fix = "set kv_events.enabled: true (leave out --no-kv-events)";
    look_at(&engine, &["--no-kv-events"]).fails(&["w1"], "events_enabled", fix, &[]);
    let fix = "set workers[0].kv_events.source: auto";
    look_with(&engine, "kv_events: {source: none}", "").fails(&["w1"], "events_enabled", fix, &[]);
}

#[test]
#[contract("G28")]
fn wrong_topic() {
    let engine = engine(&["--topic", "kv@here"]);
    let fix =
        "set {key}: \"{there}\", or set \"topic\": \"{here}\" in the engine's --kv-events-config";
    let values = |key, here| [("key", key), ("there", "kv@here"), ("here", here)];
    let wrong = look_with(&engine, "kv_events: {topic: \"kv@elsewhere\"}", "");
    let check = wrong.fails(
        &["w1"],
        "events_arriving",
        fix,
        &values("workers[0].kv_events.topic", "kv@elsewhere"),
    );
    assert_eq!(check["found"], "\"kv@here\"");
    let wrong = look_with(&engine, "", "kv_events: {topic_filter: x}");
    wrong.fails(
        &["w1"],
        "events_arriving",
        fix,
        &values("kv_events.topic_filter", "x"),
    );
    look_with(&engine, "kv_events: {topic: \"kv@\"}", "").green();
}

/// Checks an engine whose events pass a relay that changes them.
fn look_through(engine: &Program, change: MessageChange) -> DoctorRun {
    look_through_with(engine, change, "")
}

/// The same with these keys of the worker.
fn look_through_with(engine: &Program, change: MessageChange, keys: &str) -> DoctorRun {
    let relay = TestRelay::of(&endpoint_of(engine, "kv_events"), change);
    // The engine announces no publisher, so only the relay is known.
    let endpoints = format!(
        "endpoint: \"{}\", replay_endpoint: \"{}\"",
        relay.endpoint,
        endpoint_of(engine, "replay")
    );
    look_with(engine, &format!("kv_events: {{{endpoints}}}{keys}"), "")
}

/// An engine that does not announce its publisher.
fn quiet(flags: &[&str]) -> Program {
    engine(&[&["--without", "/kv_event_sources"], flags].concat())
}

/// Topic, number and batch, with `from` replaced by `to`.
fn reworded(message: &[Vec<u8>], from: &str, to: &str) -> Vec<Vec<u8>> {
    vec![
        message[0].clone(),
        message[1].clone(),
        replaced(&message[2], from, to),
    ]
}

#[test]
fn a_relay_that_changes_nothing_passes_every_check() {
    look_through(&quiet(&[]), Some).green();
}

#[test]
#[contract("G28")]
fn blocks_are_announced_on_an_unknown_medium() {
    let tape: MessageChange = |message| Some(reworded(&message, "GPU", "TAPE"));
    let fix =
        "set workers[0].allow_tiers: [device, host] if it cannot be read back, and report its name";
    assert_eq!(
        look_through(&quiet(&[]), tape).fails(&["w1"], "medium_known", fix, &[])["found"],
        "TAPE"
    );
    let known = look_through_with(&quiet(&[]), tape, ", allow_tiers: [device, host]");
    assert_eq!(
        (known.code, known.with("fail"), known.with("warn")),
        (Some(0), vec![], vec!["w1 medium_known".to_owned()])
    );
}

#[test]
#[contract("G28")]
fn a_hybrid_model_announces_only_groups_that_do_not_hold_every_token() {
    let seen = look_through(&quiet(&[]), |message| {
        Some(reworded(&message, "full_attention", "mamba"))
    });
    let fix = "set workers[0].kv_events.source: none: what it has cached is guessed then, until a release also announces \
               its groups of full attention";
    assert_eq!(
        seen.fails(&["w1"], "hybrid_groups", fix, &[])["found"],
        "mamba"
    );
}

/// An hour, in seconds.
const HOUR: f64 = 3600.0;

#[test]
#[contract("G28")]
fn the_engines_clock_is_wrong() {
    let seen = look_through(&quiet(&[]), |mut message| {
        // An array whose first value is the time, eight bytes after its type byte.
        let batch = &mut message[2];
        assert_eq!(batch[1], 0xcb, "a time comes first");
        let ts = f64::from_be_bytes(batch[2..10].try_into().expect("eight bytes"));
        batch[2..10].copy_from_slice(&(ts + HOUR).to_be_bytes());
        Some(message)
    });
    let fix = "synchronise the clocks of both machines by NTP: timedatectl set-ntp true";
    let check = seen.fails(&["w1"], "clock", fix, &[]);
    assert!(
        check["message"]
            .as_str()
            .is_some_and(|text| text.contains("ahead of ours")),
        "{check}"
    );
}

#[test]
#[contract("G28")]
fn batches_are_lost_on_the_way() {
    static BATCHES: AtomicU64 = AtomicU64::new(0);
    let seen = look_through(&quiet(&[]), |message| {
        // Loses the second batch, which continues the first.
        (BATCHES.fetch_add(1, Ordering::SeqCst) != 1).then_some(message)
    });
    let fix = "set \"hwm\": 1000000 in the engine's --kv-events-config, and look for a slow network between";
    assert_eq!(seen.fails(&["w1"], "sequence", fix, &[])["found"], "1");
}

#[test]
#[contract("G28")]
fn batches_carry_no_number() {
    let seen = look_through(&quiet(&[]), |message| {
        Some(vec![message[0].clone(), message[2].clone()])
    });
    let fix = "use a publisher that numbers its batches (three frames)";
    seen.warns("w1", "sequence", fix, &[]);
}
