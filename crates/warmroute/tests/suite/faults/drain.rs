//! The shutdown of the router while requests run.

use contract_id::contract;

use super::fleet::SimulatedRouter;
use crate::harness::{RawClient, SimControls as _, Stopwatch, chat, eventually, streamed};

const SLOW: &[&str] = &["--no-kv-events", "--itl-ms", "20", "--overhead-ms", "1"];

#[test]
fn a_stream_that_runs_at_sigterm_is_completed() {
    let fleet = SimulatedRouter::start(1, SLOW, "server: {drain_grace: 0s}");
    let data = fleet.router.data();
    let mut stream = RawClient::chat(&data, &streamed(chat("sim", "hi", 50)));
    let mut plain = RawClient::chat(&data, &chat("sim", "hi", 40));
    let mut idle = RawClient::connect(&data);
    let begun = stream.read_until("content");
    eventually("both to run", || {
        let stats = fleet.engines[0].stats();
        (stats["running"] == 2).then_some(())
    });
    fleet.router.signal("TERM");
    assert!(idle.is_closed(), "a connection without a request is closed");
    let stream = stream.body(begun);
    assert!(
        stream.clean && stream.text().ends_with("data: [DONE]\n\n"),
        "{}",
        stream.text()
    );
    let plain = plain.reply();
    assert!(plain.clean && plain.status == 200);
    let ended = fleet.router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_stream_that_outlasts_the_drain_is_cut_with_the_error_event_and_sets_the_exit_code() {
    let fleet = SimulatedRouter::start(1, SLOW, "server: {drain_grace: 0s, drain_timeout: 400ms}");
    let data = fleet.router.data();
    let mut stream = RawClient::chat(&data, &streamed(chat("sim", "hi", 5000)));
    let mut plain = RawClient::chat(&data, &chat("sim", "hi", 5000));
    let begun = stream.read_until("content");
    eventually("both to run", || {
        let stats = fleet.engines[0].stats();
        (stats["running"] == 2).then_some(())
    });
    fleet.router.signal("TERM");
    let signalled = Stopwatch::start();
    let stream = stream.body(begun);
    eprintln!(
        "a drain of 400 ms cut its stream after {} ms",
        signalled.elapsed().as_millis()
    );
    assert!(!stream.clean && !stream.text().contains("[DONE]"));
    assert!(
        stream.text().contains("\"code\":\"stream_interrupted\""),
        "{}",
        stream.text()
    );
    let plain = plain.reply();
    assert_eq!(
        (plain.status, plain.error_code().as_str()),
        (503, "draining")
    );
    let ended = fleet.router.wait();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    eventually("the engine to be idle", || {
        let stats = fleet.engines[0].stats();
        (stats["running"] == 0 && stats["aborted"] == 2).then_some(())
    });
}

#[test]
#[contract("F72")]
fn during_the_drain_grace_new_connections_are_served_and_closed_while_readiness_fails() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events"], "server: {drain_grace: 4s}");
    let data = fleet.router.data();
    let mut idle = RawClient::connect(&data);
    assert_eq!(RawClient::get(&data, "/readyz").status, 200);
    fleet.router.signal("TERM");
    eventually("readiness to fail", || {
        let reply = RawClient::get(&data, "/readyz");
        (reply.status == 503 && reply.json()["status"] == "draining").then_some(())
    });
    let served = RawClient::chat(&data, &chat("sim", "hi", 3)).reply();
    assert_eq!(
        (served.status, served.header("connection")),
        (200, Some("close"))
    );
    idle.send("GET", "/livez", &[], b"");
    assert_eq!(
        idle.reply().status,
        200,
        "a connection from before is served, too"
    );
    let ended = fleet.router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn an_interrupt_from_a_terminal_skips_the_drain_grace() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events"], "server: {drain_grace: 300s}");
    fleet.router.signal("INT");
    let ended = fleet.router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
