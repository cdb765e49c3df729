//! The scope of the retry budget: retries on engines that all fail, and never those on an engine
//! that answers.

use std::{net::TcpStream, thread::JoinHandle, time::Duration};

use contract_id::contract;
use serde_json::json;

use super::fleet::{ScriptedFleet, attempts, fine};
use crate::harness::{
    PieceGate, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    eventually,
};

/// Resets a request after `pause` without any reply.
fn reset_after(pause: Duration) -> ScriptedReply {
    ScriptedReply::CutAfter(vec![Vec::new()], pause)
}

/// Sends `count` requests at once, each on its own connection.
fn send_at_once(address: &str, count: usize) -> Vec<JoinHandle<RawReply>> {
    let send = |number: usize| {
        let address = address.to_owned();
        std::thread::spawn(move || {
            RawClient::chat(&address, &chat("m", &format!("question {number}"), 1)).reply()
        })
    };
    (0..count).map(send).collect()
}

fn replies(threads: Vec<JoinHandle<RawReply>>) -> Vec<RawReply> {
    threads
        .into_iter()
        .map(|threads| threads.join().expect("every request is answered"))
        .collect()
}

#[test]
#[contract("F4")]
fn a_hundred_requests_reset_at_once_by_two_engines_are_not_all_retried() {
    // One attempt of each engine is reset before the others, so that every retry after those two
    // goes to an engine that has failed lately. Retries wait until all first attempts are over.
    let (first, later) = ([PieceGate::new(), PieceGate::new()], PieceGate::new());
    let resets = |engine: usize| ScriptedReply::CutGated(first[engine].clone());
    let scripted = ScriptedFleet::start(&[resets(0), resets(1)], "");
    let threads = send_at_once(&scripted.router.data(), 100);
    eventually("all hundred to be in flight", || {
        (scripted.requests() == 100).then_some(())
    });
    for engine in &scripted.engines {
        engine.script(ScriptedReply::CutGated(later.clone()));
    }
    for (gate, sent) in first.iter().zip([101, 102]) {
        gate.open();
        eventually("the first reset of an engine to be retried", || {
            (scripted.requests() == sent).then_some(())
        });
    }
    (0..100).for_each(|_| first.iter().for_each(PieceGate::open));
    let sends = eventually("each to be answered or sent again", || {
        let answered = threads.iter().filter(|thread| thread.is_finished()).count();
        let sends = scripted.requests();
        (answered as u64 + sends == 200).then_some(sends)
    });
    (0..1_000).for_each(|_| later.open());
    let replies = replies(threads);
    let codes: Vec<_> = replies
        .iter()
        .map(|reply| (reply.status, reply.error_code()))
        .collect();
    assert!(
        codes
            .iter()
            .all(|code| *code == (502, "upstream_reset".to_owned())),
        "{codes:?}"
    );
    // One for each request, the first retry (at an engine that had not failed yet), and a fifth more.
    eprintln!("100 requests, {sends} sends");
    assert!(
        (102..=121).contains(&sends),
        "{sends} sends for 100 requests"
    );
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F2")]
fn an_engine_that_resets_everything_beside_a_healthy_one_costs_no_request() {
    let scripted = ScriptedFleet::start(
        &[
            reset_after(Duration::from_secs(2)),
            ScriptedReply::Late(Duration::from_millis(500), fine()),
        ],
        "",
    );
    let replies = replies(send_at_once(&scripted.router.data(), 100));
    assert!(
        replies.iter().all(|reply| reply.status == 200),
        "{:?}",
        replies.iter().find(|it| it.status != 200)
    );
    scripted.router.wait_until_idle();
}

#[test]
#[contract("V38")]
fn a_request_whose_two_engines_die_waits_for_a_worker() {
    let gate = PieceGate::new();
    let reset = || ScriptedReply::CutGated(gate.clone());
    let yaml = "queue: {engine_wait_timeout_secs: 60}\n";
    let mut scripted = ScriptedFleet::start(&[reset(), reset()], yaml);
    let mut client = RawClient::chat(&scripted.router.data(), &chat("m", "hi", 1));
    eventually("an engine to have it", || {
        (scripted.requests() == 1).then_some(())
    });
    gate.open();
    eventually("both engines to have it", || {
        (scripted.requests() == 2).then_some(())
    });
    // Their ports refuse from now on, and the reset of the second one comes later.
    let addresses: Vec<_> = scripted
        .engines
        .drain(..)
        .map(|engine| engine.address().to_owned())
        .collect();
    eventually("their ports to be closed", || {
        let mut closed = addresses.iter().map(TcpStream::connect);
        closed.all(|connected| connected.is_err()).then_some(())
    });
    gate.open();
    let waiting = std::thread::spawn(move || client.reply());
    eventually("the request to wait", || {
        (scripted.router.metric("warmroute_queued", "") > 0.0).then_some(())
    });
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let mut admin = RawClient::connect(&scripted.router.admin());
    admin.send(
        "POST",
        "/admin/workers",
        &[],
        json!({"name": "new", "url": engine.url()})
            .to_string()
            .as_bytes(),
    );
    assert_eq!(admin.reply().status, 201);
    let reply = waiting.join().expect("it is answered");
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, r#"{"id":"fine"}"#)
    );
    let receipt = scripted.router.receipt_of(&reply);
    let attempts = attempts(&receipt);
    let reset = attempts
        .iter()
        .filter(|attempt| **attempt == (Some("C1"), "reset_before_head"))
        .count();
    assert_eq!(
        (reset, attempts.last()),
        (2, Some(&(None, "ok"))),
        "{attempts:?}"
    );
    scripted.router.wait_until_idle();
}
