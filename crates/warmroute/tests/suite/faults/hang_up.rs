//! Clients that disconnect: the engine sees it, and no state remains.

use std::time::Duration;

use contract_id::contract;
use serde_json::Value;

use super::fleet::{CHAT, ScriptedFleet, SimulatedRouter, fine};
use crate::harness::{
    RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, SimControls as _, Stopwatch,
    chat, chunk, eventually, stream_head, streamed,
};

/// A generous bound of the median for busy machines; the promise is 100 ms, and the figures are
/// printed.
const BOUND: Duration = Duration::from_secs(1);

/// Disconnects and measures the time until the engine sees it.
fn hang_up(client: RawClient, engine: &ScriptedEngine) -> Duration {
    let left = Stopwatch::start();
    drop(client);
    left.until(engine.hang_up())
}

fn within_the_bound(what: &str, mut delays: Vec<Duration>) {
    delays.sort();
    let us: Vec<_> = delays.iter().map(Duration::as_micros).collect();
    eprintln!("{what}: the engine sees the client leave after {us:?} us");
    // A machine that stands still delays single ones.
    assert!(delays[delays.len() / 2] < BOUND, "{what}: {us:?} us");
}

#[test]
#[contract("F34", "I6")]
fn the_engine_sees_a_client_leave_before_the_first_byte() {
    let scripted = ScriptedFleet::one(ScriptedReply::Silence, "");
    let engine = &scripted.engines[0];
    for (what, body) in [
        ("streamed, before its head", streamed(chat("m", "hi", 1))),
        ("plain", chat("m", "hi", 1)),
    ] {
        let delays = (0..5).map(|_| {
            let client = RawClient::chat(&scripted.router.data(), &body);
            engine.next_request();
            hang_up(client, engine)
        });
        within_the_bound(what, delays.collect());
    }
    engine.script(ScriptedReply::Stall(stream_head()));
    let delays = (0..5).map(|_| {
        let client = RawClient::chat(&scripted.router.data(), &streamed(chat("m", "hi", 1)));
        engine.next_request();
        // Gives the engine's head time to reach the router, which waits for an event.
        std::thread::sleep(Duration::from_millis(20));
        hang_up(client, engine)
    });
    within_the_bound("streamed, after the engine's head", delays.collect());
    scripted.router.wait_until_idle();
    assert!(
        scripted
            .router
            .receipts()
            .iter()
            .all(|receipt| receipt["outcome"]["kind"] == "client_gone")
    );
}

#[test]
#[contract("F35", "I6")]
fn the_engine_sees_a_client_leave_after_the_first_byte() {
    let first = [stream_head(), chunk(b"data: 1\n\n")].concat();
    let scripted = ScriptedFleet::one(ScriptedReply::Stall(first.clone()), "");
    let engine = &scripted.engines[0];
    let leave = || {
        let mut client = RawClient::chat(&scripted.router.data(), &streamed(chat("m", "hi", 1)));
        client.read_until("data: 1\n\n");
        hang_up(client, engine)
    };
    within_the_bound(
        "mid-stream, engine silent",
        (0..5).map(|_| leave()).collect(),
    );
    engine.script(ScriptedReply::Endless(
        first,
        chunk(&[b"data: ".as_slice(), &[b'x'; 1000], b"\n\n"].concat()),
    ));
    within_the_bound(
        "mid-stream, engine busy writing",
        (0..5).map(|_| leave()).collect(),
    );
    scripted.router.wait_until_idle();
    assert!(
        scripted
            .router
            .receipts()
            .iter()
            .all(|receipt| receipt["outcome"]["kind"] == "client_gone")
    );
}

#[test]
#[contract("F34", "F35")]
fn a_generation_stops_when_its_client_leaves() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events", "--itl-ms", "20"], "");
    let engine = &fleet.engines[0];
    for (number, body) in [
        chat("sim", "hi", 20_000),
        streamed(chat("sim", "hi", 20_000)),
    ]
    .into_iter()
    .enumerate()
    {
        let client = RawClient::chat(&fleet.router.data(), &body);
        eventually("it runs", || (engine.stats()["running"] == 1).then_some(()));
        drop(client);
        eventually("it is aborted", || {
            (engine.stats()["aborted"] == number + 1).then_some(())
        });
        assert_eq!(engine.stats()["running"], 0);
    }
    fleet.router.wait_until_idle();
}

#[test]
#[contract("F31", "F32")]
fn a_client_that_leaves_while_it_sends_reaches_no_engine() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let mut in_head = RawClient::connect(&scripted.router.data());
    in_head.send_bytes(b"POST /v1/chat/comp");
    drop(in_head);
    let mut in_body = RawClient::connect(&scripted.router.data());
    in_body.send_bytes(
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{{\"model\":")
            .as_bytes(),
    );
    drop(in_body);
    eventually("both to be over", || {
        let ended = scripted
            .router
            .metric("warmroute_requests_total", "route=\"/v1/chat/completions\"");
        (ended == 1.0).then_some(())
    });
    scripted.router.wait_until_idle();
    assert_eq!(scripted.requests(), 0);
}

#[test]
#[contract("F38", "I6")]
fn a_half_closed_client_counts_as_gone_unless_half_close_is_configured() {
    let engines = &["--no-kv-events", "--itl-ms", "20"];
    let send = |fleet: &SimulatedRouter, body: Value| {
        let mut client = RawClient::chat(&fleet.router.data(), &body);
        eventually("it runs", || {
            (fleet.engines[0].stats()["running"] == 1).then_some(())
        });
        client.half_close();
        client
    };
    let strict = SimulatedRouter::start(1, engines, "");
    let _waiting = send(&strict, chat("sim", "hi", 20_000));
    eventually("it is aborted", || {
        (strict.engines[0].stats()["aborted"] == 1).then_some(())
    });

    let patient = SimulatedRouter::start(1, engines, "server: {half_close: true}");
    let plain = send(&patient, chat("sim", "hi", 100)).reply();
    assert_eq!(plain.json()["usage"]["completion_tokens"], 100);
    let stream = send(&patient, streamed(chat("sim", "hi", 100))).reply();
    assert!(
        stream.clean && stream.text().trim_end().ends_with("data: [DONE]"),
        "{}",
        stream.text()
    );
    assert_eq!(patient.engines[0].stats()["aborted"], 0);
    // The next event of its stream reveals a client that closed completely.
    drop(send(&patient, streamed(chat("sim", "hi", 20_000))));
    eventually("it is aborted", || {
        (patient.engines[0].stats()["aborted"] == 1).then_some(())
    });
    patient.router.wait_until_idle();
}

#[test]
#[contract("I2")]
fn two_hundred_clients_that_leave_at_once_leave_nothing_behind() {
    let fleet = SimulatedRouter::start(2, &["--no-kv-events", "--itl-ms", "20"], "");
    let body = |number: usize| {
        let body = chat("sim", &format!("question {number}"), 20_000);
        if number.is_multiple_of(2) {
            body
        } else {
            streamed(body)
        }
    };
    let clients: Vec<_> = (0..200)
        .map(|number| RawClient::chat(&fleet.router.data(), &body(number)))
        .collect();
    eventually("all to be at the engines", || {
        let in_flight: u64 = fleet
            .engines
            .iter()
            .map(|engine| engine.stats()["requests"].as_u64().unwrap())
            .sum();
        (in_flight == 200).then_some(())
    });
    let left = Stopwatch::start();
    drop(clients);
    fleet.router.wait_until_idle();
    eprintln!(
        "200 clients left: nothing is held after {} ms",
        left.elapsed().as_millis()
    );
    eventually("the engines to be idle", || {
        let busy = fleet
            .engines
            .iter()
            .any(|engine| engine.stats()["running"] != 0 || engine.stats()["waiting"] != 0);
        (!busy).then_some(())
    });
    let gone = fleet
        .router
        .metric("warmroute_requests_total", "outcome=\"client_gone\"");
    assert_eq!(gone, 200.0);
}
