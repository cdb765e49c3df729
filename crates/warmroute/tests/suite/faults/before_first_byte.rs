//! Engines that fail before the client has received a byte: another engine answers, or the client
//! gets an error.

use std::time::Duration;

use contract_id::contract;

use super::fleet::{CHAT, ScriptedFleet, SimulatedRouter, attempts, fine};
use crate::harness::{
    RawClient, RouterQueries as _, ScriptedReply, SimControls as _, chat, events_of, stream_head,
    streamed, text_of,
};

const FAST: &[&str] = &["--no-kv-events", "--speed", "20"];

#[test]
#[contract("F2")]
fn an_engine_that_dies_before_its_head_is_replaced_by_another() {
    let fleet = SimulatedRouter::start(2, FAST, "");
    let normal = text_of(&fleet.post(&chat("sim", "hi", 8)));
    for body in [chat("sim", "hi", 8), streamed(chat("sim", "hi", 8))] {
        // Round robin uses the engines in turn; the one whose turn is first fails once.
        fleet.engines[0].fault("reset", 1);
        let replies: Vec<_> = (0..2).map(|_| fleet.post(&body)).collect();
        assert!(
            replies
                .iter()
                .all(|reply| reply.status == 200 && reply.clean && text_of(reply) == normal)
        );
        let tried: Vec<_> = replies
            .iter()
            .map(|reply| fleet.router.receipt_of(reply))
            .collect();
        let tried: Vec<_> = tried.iter().map(attempts).collect();
        assert!(
            tried.contains(&vec![(Some("C1"), "reset_before_head"), (None, "ok")]),
            "{tried:?}"
        );
    }
    fleet.router.wait_until_idle();
}

#[test]
#[contract("F2")]
fn a_stream_that_breaks_before_its_first_event_has_not_started() {
    let cut = || ScriptedReply::Cut(stream_head());
    let scripted = ScriptedFleet::start(&[ScriptedReply::Silence, ScriptedReply::Silence], "");
    let events = crate::harness::stream_reply(&[b"data: 1\n\n", b"data: [DONE]\n\n"]);
    scripted
        .engines
        .iter()
        .for_each(|engine| engine.script(ScriptedReply::whole(events.clone())));
    scripted.engines[0].once(cut());
    for _ in 0..2 {
        let reply = scripted.post(&streamed(chat("m", "hi", 1)));
        assert_eq!(
            (reply.status, reply.clean, events_of(&reply)),
            (200, true, vec!["1".to_owned(), "[DONE]".to_owned()])
        );
    }
    assert_eq!(scripted.requests(), 3);
}

#[test]
#[contract("F3")]
fn an_engine_that_refuses_connections_costs_no_request() {
    let mut fleet = SimulatedRouter::start(3, FAST, "");
    fleet.engines[1].kill();
    for number in 0..9 {
        let reply = fleet.post(&chat("sim", &format!("question {number}"), 4));
        assert_eq!((reply.status, reply.clean), (200, true));
    }
    let refused = fleet
        .router
        .metric("warmroute_upstream_failures_total", "reason=\"refused\"");
    eprintln!("9 requests beside a dead engine: {refused} attempts met it");
    fleet.router.wait_until_idle();
}

#[test]
#[contract("F5", "I6")]
fn an_engine_that_never_answers_gives_504_and_delays_no_other_request() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "request: {timeout: 2s}");
    scripted.engines[0].once(ScriptedReply::Silence);
    let mut waiting = RawClient::chat(&scripted.router.data(), &chat("m", "hi", 1));
    scripted.engines[0].next_request();
    assert_eq!(scripted.post(&chat("m", "other", 1)).status, 200);
    let reply = waiting.reply();
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (504, "first_byte_timeout")
    );
    scripted.engines[0].hang_up();
    assert_eq!(scripted.requests(), 2, "it is not tried again");
    assert_eq!(
        attempts(&scripted.router.receipt_of(&reply)),
        [(None, "timeout")]
    );
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F8")]
fn a_head_that_arrives_too_slowly_gives_504() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "request: {timeout: 2s}");
    let drips = fine().iter().map(|byte| vec![*byte]).collect();
    scripted.engines[0].once(ScriptedReply::Pieces(drips, Duration::from_millis(50)));
    let reply = scripted.post(&chat("m", "hi", 1));
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (504, "first_byte_timeout")
    );
    assert_eq!(
        scripted.post(&chat("m", "hi", 1)).text(),
        r#"{"id":"fine"}"#
    );
}

#[test]
#[contract("F23")]
fn an_answer_that_comes_before_the_whole_request_was_read_is_delivered() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let early =
        crate::harness::json_reply("422 Too long", "connection: close\r\n", r#"{"early":true}"#);
    scripted.engines[0].once(ScriptedReply::Early(early));
    let long = chat("m", &"word ".repeat(3_000_000), 1);
    let reply = RawClient::post(&scripted.router.data(), CHAT, long.to_string().as_bytes());
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (422, r#"{"early":true}"#)
    );
    assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200);
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F28")]
fn a_connection_that_the_engine_closed_while_it_was_idle_costs_no_request() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::CutAfter(vec![fine()], Duration::from_millis(30)),
        "",
    );
    for number in 0..12 {
        let reply = scripted.post(&chat("m", &format!("question {number}"), 1));
        assert_eq!((reply.status, reply.clean), (200, true), "{}", reply.text());
        std::thread::sleep(Duration::from_millis(number * 5));
    }
    assert_eq!(scripted.requests(), 12, "nothing was executed twice");
}
