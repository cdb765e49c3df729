//! kill -9 of an engine under load, and its restart.

use contract_id::contract;
use serde_json::Value;
use test_programs::ReservedPort;

use super::fleet::{SimulatedRouter, attempts};
use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, SimControls as _, Stopwatch, chat,
    eventually, streamed, text_of,
};

const CLIENTS: usize = 24;
const ENGINE: &[&str] = &[
    "--itl-ms",
    "15",
    "--overhead-ms",
    "1",
    "--max-num-seqs",
    "64",
];

/// The outcome of one request.
enum RequestFate {
    /// A complete reply.
    Whole(String),
    /// Cut after the first bytes, with the error event and without a clean end.
    Cut(String),
}

fn outcome(reply: &RawReply, streams: bool) -> RequestFate {
    let text = reply.text();
    assert_eq!(
        reply.status, 200,
        "a request that had not started was lost: {text}"
    );
    if reply.clean {
        assert_eq!(text.contains("[DONE]"), streams, "{text}");
        assert!(!text.contains("\"error\""), "{text}");
        return RequestFate::Whole(text_of(reply));
    }
    assert!(streams, "a plain reply is whole or an error: {text}");
    assert!(
        text.contains("\"code\":\"stream_interrupted\"") && text.ends_with("}}\n\n"),
        "{text}"
    );
    assert!(
        !text.contains("[DONE]") && !text.contains("\"finish_reason\":\"length\""),
        "{text}"
    );
    RequestFate::Cut(text_of(reply))
}

#[test]
#[contract("F1", "F2", "I2", "I3", "I4", "I5")]
fn killing_one_of_three_engines_loses_no_request_without_a_started_reply() {
    let mut fleet = SimulatedRouter::start(3, ENGINE, "");
    let data = fleet.router.data();
    let body = |number: usize, round: usize| {
        let body = chat("sim", &format!("client {number} asks question {round}"), 30);
        if number.is_multiple_of(2) {
            streamed(body)
        } else {
            body
        }
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let fates: Vec<(usize, usize, RequestFate)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (data, stop, body) = (&data, &stop, &body);
                scope.spawn(move || {
                    let mut fates = Vec::new();
                    for round in 0.. {
                        let reply = RawClient::chat(data, &body(number, round)).reply();
                        fates.push((number, round, outcome(&reply, number.is_multiple_of(2))));
                        if stop.load(std::sync::atomic::Ordering::SeqCst) {
                            break;
                        }
                    }
                    fates
                })
            })
            .collect();
        eventually("the engine to be busy", || {
            let stats = fleet.engines[1].stats();
            (stats["executions"].as_u64() > Some(8) && stats["running"].as_u64() > Some(3))
                .then_some(())
        });
        fleet.engines[1].kill();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    fleet.router.wait_until_idle();
    eventually("the dead engine's blocks to be removed", || {
        let dead = fleet.engines[1].data();
        let worker = fleet
            .router
            .workers()
            .into_iter()
            .find(|worker| worker["name"] == dead)?;
        (worker["state"] == "down" && worker["warm_blocks"]["device"] == 0).then_some(())
    });
    let receipts = fleet.router.receipts();
    assert_eq!(receipts.len(), fates.len());
    let retried = receipts
        .iter()
        .filter(|receipt| attempts(receipt).len() > 1)
        .count();
    let cut = fates
        .iter()
        .filter(|(_, _, outcome)| matches!(outcome, RequestFate::Cut(_)))
        .count();
    eprintln!(
        "{} requests by {CLIENTS} clients, one of three engines killed: {cut} cut, {retried} answered by another, 0 lost",
        fates.len()
    );
    executions_are_within_attempts(&receipts, &fleet);
    // Every reply equals that of a live engine for the same request; a cut one is a prefix of it.
    for (number, round, outcome) in fates
        .iter()
        .filter(|(_, round, outcome)| *round == 0 || matches!(outcome, RequestFate::Cut(_)))
    {
        let again =
            text_of(&RawClient::chat(&fleet.engines[0].data(), &body(*number, *round)).reply());
        match outcome {
            RequestFate::Whole(text) => assert_eq!(*text, again),
            RequestFate::Cut(text) => assert!(
                again.starts_with(&**text),
                "{text:?} is no start of {again:?}"
            ),
        }
    }
}

/// The live engines executed no more attempts than the receipts list; only the router sent them
/// requests.
fn executions_are_within_attempts(receipts: &[Value], fleet: &SimulatedRouter) {
    for engine in [&fleet.engines[0], &fleet.engines[2]] {
        let name = engine.data();
        let here =
            |attempt: &&Value| attempt["target"]["worker"] == name && attempt["class"] != "C0";
        let tried = receipts
            .iter()
            .flat_map(|receipt| receipt["attempts"].as_array().unwrap())
            .filter(here)
            .count();
        let executions = usize::try_from(engine.stats()["executions"].as_u64().unwrap()).unwrap();
        assert!(
            (1..=tried).contains(&executions),
            "{name}: {executions} executions for {tried} attempts"
        );
    }
    assert!(receipts.iter().all(|receipt| {
        attempts(receipt)
            .iter()
            .filter(|(class, _)| *class == Some("C3"))
            .count()
            <= 1
    }));
    assert!(receipts.iter().all(|receipt| {
        let after_c3 = attempts(receipt)
            .iter()
            .skip_while(|(class, _)| *class != Some("C3"))
            .count();
        after_c3 <= 1
    }));
}

#[test]
#[contract("B4")]
fn an_engine_that_comes_back_on_its_port_is_used_again() {
    let mut fleet = SimulatedRouter::start(2, &["--no-kv-events", "--speed", "20"], "");
    let port = port_of(&fleet.engines[0].data());
    measure_return(
        &mut fleet,
        &["--no-kv-events", "--speed", "20", "--port", &port],
    );
}

#[test]
fn an_engine_whose_events_come_back_is_used_again() {
    let reserved = ReservedPort::new();
    let events = format!("tcp://{}", reserved.address());
    let flags = ["--speed", "20", "--kv-events", &events];
    let other = Program::engine(&["--no-kv-events"]);
    let engine = Program::engine(&flags);
    let port = port_of(&engine.data());
    let urls = [engine.url(), other.url()];
    let router = Program::serve(&urls, &["--policy", "round_robin"]).ready(2);
    let mut fleet = SimulatedRouter {
        engines: vec![engine, other],
        router,
    };
    measure_return(&mut fleet, &[flags.as_slice(), &["--port", &port]].concat());
}

/// Kills the first engine, restarts it with these flags, and measures until it gets a request.
fn measure_return(fleet: &mut SimulatedRouter, flags: &[&str]) {
    let address = fleet.engines[0].data();
    fleet.engines[0].kill();
    eventually("the router to notice", || {
        assert_eq!(fleet.post(&chat("sim", "hi", 2)).status, 200);
        fleet
            .router
            .workers()
            .iter()
            .any(|worker| worker["state"] == "down")
            .then_some(())
    });
    // The killed engine's handle keeps the port reserved.
    let _dead = std::mem::replace(&mut fleet.engines[0], Program::engine(flags));
    let back = Stopwatch::start();
    let took = eventually("it to be used again", || {
        let reply = fleet.post(&chat("sim", "hi", 2));
        assert_eq!(reply.status, 200);
        (reply.header("x-warmroute-worker") == Some(&*address)).then(|| back.elapsed())
    });
    eprintln!(
        "a restarted engine ({}) was used again {} ms after its ready line",
        flags[0],
        took.as_millis()
    );
    fleet.router.wait_until_idle();
}

fn port_of(address: &str) -> String {
    address.rsplit_once(':').unwrap().1.to_owned()
}
