//! Streams that fail after their first byte: the sent part stands, one error event follows, and
//! there is no clean end.

use std::time::Duration;

use contract_id::contract;
use serde_json::Value;

use super::fleet::{ScriptedFleet, SimulatedRouter, attempts};
use crate::harness::{
    PieceGate, RawClient, RawReply, RouterQueries as _, ScriptedReply, Stopwatch, chat, chunk,
    events_of, stream_head, streamed,
};

/// Splits a cut stream into the engine's events and our code, after checking its end.
fn cut(reply: &RawReply) -> (Vec<String>, String) {
    let text = reply.text();
    assert!(!reply.clean, "a cut stream has no clean end: {text}");
    assert!(!text.contains("[DONE]"), "{text}");
    let mut events = events_of(reply);
    let last: Value = serde_json::from_str(&events.pop().expect("an error event"))
        .expect("the last event is JSON");
    let error = &last["error"];
    assert_eq!(error["type"], "upstream_error");
    assert_eq!(error["request_id"], reply.header("x-request-id").unwrap());
    assert!(
        events
            .iter()
            .all(|event| !event.contains("\"finish_reason\":\"")),
        "{text}"
    );
    (events, error["code"].as_str().expect("a code").to_owned())
}

#[test]
#[contract("I3", "I5")]
fn a_stream_that_breaks_keeps_its_tokens_and_ends_with_the_error() {
    let fleet = SimulatedRouter::start(2, &["--no-kv-events", "--speed", "20"], "");
    let whole = events_of(&fleet.post(&streamed(chat("sim", "hi", 20))));
    let delta = |event: &String| {
        serde_json::from_str::<Value>(event).unwrap()["choices"][0]["delta"]["content"].clone()
    };
    for after in [1, 5] {
        fleet.fault(&format!("reset_mid:{after}"));
        let reply = fleet.post(&streamed(chat("sim", "hi", 20)));
        let (events, code) = cut(&reply);
        assert_eq!((events.len(), code.as_str()), (after, "stream_interrupted"));
        assert!(
            events
                .iter()
                .zip(&whole)
                .all(|(got, whole)| delta(got) == delta(whole))
        );
        let receipt = fleet.router.receipt_of(&reply);
        assert_eq!(attempts(&receipt), [(Some("C3"), "mid_stream")]);
        assert_eq!(receipt["outcome"]["kind"], "upstream_error");
        fleet.fault("none");
    }
    fleet.router.wait_until_idle();
}

#[test]
#[contract("F9", "I5")]
fn a_stream_cut_inside_an_event_shows_no_part_of_it() {
    let broken = |torn: &[u8]| {
        ScriptedReply::Cut(
            [
                stream_head(),
                chunk(b"data: 1\n\ndata: 2\r\n\r\n"),
                chunk(torn),
            ]
            .concat(),
        )
    };
    let scripted = ScriptedFleet::one(ScriptedReply::Silence, "");
    for torn in [
        b"data: {\"half".as_slice(),
        b"data: x\r",
        b"\xef\xbb\xbf",
        b"event: a\ndata: b\n",
    ] {
        scripted.engines[0].once(broken(torn));
        let reply = scripted.post(&streamed(chat("m", "hi", 1)));
        let text = reply.text();
        assert!(
            text.starts_with("data: 1\n\ndata: 2\r\n\r\ndata: {\"error\""),
            "{text}"
        );
        assert!(!reply.clean);
    }
}

#[test]
fn a_stream_cut_after_part_of_an_event_was_sent_ends_with_a_separate_error_event() {
    let begun = [stream_head(), chunk(b"data: 1\n\ndata: {\"half")].concat();
    let gate = PieceGate::new();
    let scripted = ScriptedFleet::one(ScriptedReply::CutBehind(begun, gate.clone()), "");
    let mut client = RawClient::chat(&scripted.router.data(), &streamed(chat("m", "hi", 1)));
    // The partial event is sent after 50 ms; the cut comes later.
    let sent = client.read_until("half");
    gate.open();
    let reply = client.body(sent);
    let text = reply.text();
    assert!(
        text.starts_with("data: 1\n\ndata: {\"half\n\ndata: {\"error\":{"),
        "{text}"
    );
    assert!(!reply.clean && text.ends_with("}}\n\n"));
}

#[test]
#[contract("F6", "I5", "I6")]
fn a_stream_that_stalls_is_cut_at_the_idle_limit() {
    let fleet = SimulatedRouter::start(
        1,
        &["--no-kv-events", "--speed", "20"],
        "request: {stream_idle_timeout: 2s}",
    );
    fleet.fault("stall_mid:3");
    let took = Stopwatch::start();
    let (events, code) = cut(&fleet.post(&streamed(chat("sim", "hi", 20))));
    eprintln!(
        "a stall with an idle limit of 2 s was cut after {} ms",
        took.elapsed().as_millis()
    );
    assert_eq!((events.len(), code.as_str()), (3, "stream_idle_timeout"));
    fleet.router.wait_until_idle();
    let scripted = ScriptedFleet::one(
        ScriptedReply::Stall([stream_head(), chunk(b"data: 1\n\n")].concat()),
        "request: {stream_idle_timeout: 300ms}",
    );
    let (events, code) = cut(&scripted.post(&streamed(chat("m", "hi", 20))));
    assert_eq!((events.len(), code.as_str()), (1, "stream_idle_timeout"));
    scripted.engines[0].hang_up();
}

#[test]
#[contract("F7")]
fn a_slow_stream_passes_until_its_maximum_duration() {
    let drips = std::iter::once(stream_head())
        .chain((0..200).map(|_| chunk(b"data: 1\n\n")))
        .collect();
    let scripted = ScriptedFleet::one(
        ScriptedReply::Pieces(drips, Duration::from_millis(20)),
        "request: {stream_idle_timeout: 10s, stream_max_duration: 700ms}",
    );
    let took = Stopwatch::start();
    let (events, code) = cut(&scripted.post(&streamed(chat("m", "hi", 20))));
    assert_eq!(code, "stream_too_long");
    let took = took.elapsed();
    assert!(took >= Duration::from_millis(700), "{took:?}");
    // Some of the 200, however slow the machine is.
    assert!((1..150).contains(&events.len()), "{}", events.len());
    scripted.router.wait_until_idle();
}

#[test]
fn a_stream_that_ends_cleanly_without_done_passes_unchanged() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events", "--speed", "20"], "");
    fleet.fault("no_done");
    let reply = fleet.post(&streamed(chat("sim", "hi", 3)));
    assert!(reply.clean && !reply.text().contains("[DONE]") && !reply.text().contains("\"error\""));
    assert_eq!(events_of(&reply).len(), 1 + 3);
}

#[test]
#[contract("F21")]
fn an_error_event_of_the_engine_is_passed_on_and_counted_as_its_failure() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events", "--speed", "20"], "");
    fleet.fault("error_mid:2");
    let reply = fleet.post(&streamed(chat("sim", "hi", 20)));
    let events = events_of(&reply);
    assert!(reply.clean, "the engine ended it properly");
    assert_eq!((events.len(), events[3].as_str()), (4, "[DONE]"));
    assert_eq!(
        fleet.router.receipt_of(&reply)["outcome"]["kind"],
        "upstream_error"
    );
}
