//! Clients that disconnect at the worst moments: every request has one outcome, and no state
//! remains.

use contract_id::contract;

use crate::{
    faults::fleet::{ScriptedFleet, SimulatedRouter},
    harness::{
        Program, RawClient, RouterQueries as _, ScriptedReply, SimControls as _, Stopwatch, chat,
        eventually, stream_reply, streamed,
    },
};

const OUTCOMES: &str = "warmroute_requests_total";
const ROUTE: &str = "route=\"/v1/chat/completions\"";

fn outcome(router: &Program, kind: &str) -> f64 {
    router.metric(OUTCOMES, &format!("{ROUTE},outcome=\"{kind}\""))
}

#[test]
#[contract("F36", "I1")]
fn a_client_that_leaves_at_the_last_byte_has_one_outcome_and_never_two() {
    let events: [&[u8]; 3] = [
        b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n",
        b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        b"data: [DONE]\n\n",
    ];
    let scripted = ScriptedFleet::one(ScriptedReply::whole(stream_reply(&events)), "");
    let data = scripted.router.data();
    for number in 0..150 {
        let mut client = RawClient::chat(&data, &streamed(chat("m", "hi", 1)));
        match number % 5 {
            // With the whole reply unread.
            0 => drop(client.head()),
            // With the last event read and the end of the body unread.
            1 => drop(client.read_until("[DONE]")),
            2 => drop(client.read_until("stop")),
            // As soon as the request is sent, at about the time of the reply.
            3 => {}
            _ => assert!(client.reply().clean),
        }
    }
    // A connection that closed before its request was read carried no request.
    let accepted = || scripted.router.metric(OUTCOMES, ROUTE);
    eventually("the requests to have their outcomes", || {
        (accepted() >= 120.0).then_some(())
    });
    scripted.router.wait_until_idle();
    let (ok, gone) = (
        outcome(&scripted.router, "ok"),
        outcome(&scripted.router, "client_gone"),
    );
    eprintln!(
        "of {} requests {ok} were ok and {gone} had no client any more",
        accepted()
    );
    assert_eq!(ok + gone, accepted());
    assert!(
        (120.0..=150.0).contains(&accepted()) && ok >= 30.0,
        "the clients that read to the end"
    );
    let receipts = scripted.router.receipts();
    assert!(receipts.iter().all(|receipt| {
        receipt["attempts"]
            .as_array()
            .is_some_and(|list| list.len() <= 1)
    }));
}

#[test]
#[contract("F39", "I1", "I2")]
fn a_thousand_clients_that_leave_within_a_second_leave_nothing_behind() {
    let fleet = SimulatedRouter::start(
        2,
        &["--no-kv-events", "--itl-ms", "20"],
        "queue: {enabled: false}\n",
    );
    let body = |number: usize| {
        let body = chat("sim", &format!("question {number}"), 20_000);
        if number.is_multiple_of(2) {
            body
        } else {
            streamed(body)
        }
    };
    let data = fleet.router.data();
    let clients: Vec<_> = (0..1000)
        .map(|number| RawClient::chat(&data, &body(number)))
        .collect();
    eventually("all to be at the engines", || {
        let in_flight: u64 = fleet
            .engines
            .iter()
            .map(|engine| engine.stats()["requests"].as_u64().unwrap())
            .sum();
        (in_flight == 1000).then_some(())
    });
    let left = Stopwatch::start();
    drop(clients);
    fleet.router.wait_until_idle();
    eprintln!(
        "1000 clients left: nothing is held after {} ms",
        left.elapsed().as_millis()
    );
    eventually("the engines to be idle", || {
        let busy = fleet
            .engines
            .iter()
            .any(|engine| engine.stats()["running"] != 0 || engine.stats()["waiting"] != 0);
        (!busy).then_some(())
    });
    assert_eq!(outcome(&fleet.router, "client_gone"), 1000.0);
    assert_eq!(fleet.post(&chat("sim", "hi", 1)).status, 200);
    eventually("the last request to be counted", || {
        (fleet.router.metric(OUTCOMES, ROUTE) == 1001.0).then_some(())
    });
}
