//! Streams that end cleanly without a finish reason or `[DONE]`.

use contract_id::contract;

use crate::{
    faults::fleet::ScriptedFleet,
    harness::{
        RawReply, RouterQueries as _, ScriptedReply, chat, eventually, stream_reply, streamed,
    },
};

const TOKEN: &[u8] =
    b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n";
const LAST: &[u8] = b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &[u8] = b"data: [DONE]\n\n";

fn stream(pieces: &[&[u8]]) -> ScriptedReply {
    ScriptedReply::whole(stream_reply(pieces))
}

fn send(scripted: &ScriptedFleet) -> RawReply {
    scripted.post(&streamed(chat("m", "hi", 5)))
}

fn counted(scripted: &ScriptedFleet) -> f64 {
    scripted
        .router
        .metric("warmroute_streams_incomplete_total", "")
}

#[test]
#[contract("F20", "I5")]
fn a_stream_without_an_ending_passes_unchanged_and_is_counted() {
    let scripted = ScriptedFleet::one(stream(&[TOKEN, TOKEN]), "");
    let reply = send(&scripted);
    assert!(reply.clean);
    assert_eq!(reply.body, [TOKEN, TOKEN].concat());
    assert_eq!(scripted.router.receipt_of(&reply)["outcome"]["kind"], "ok");
    assert_eq!(counted(&scripted), 1.0);
    assert_eq!(
        scripted
            .router
            .metric("warmroute_upstream_failures_total", "incomplete"),
        1.0
    );
    scripted.engines[0].script(stream(&[]));
    let reply = send(&scripted);
    assert!(reply.clean && reply.body.is_empty(), "{}", reply.text());
    assert_eq!(counted(&scripted), 2.0);
    for whole in [
        stream(&[TOKEN, LAST]),
        stream(&[TOKEN, DONE]),
        stream(&[TOKEN, LAST, DONE]),
    ] {
        scripted.engines[0].script(whole);
        assert!(send(&scripted).clean);
    }
    assert_eq!(counted(&scripted), 2.0, "either end marker suffices");
}

#[test]
#[contract("F20", "F1")]
fn a_worker_whose_streams_have_no_ending_is_ejected_for_a_while() {
    let whole = stream(&[TOKEN, LAST, DONE]);
    let scripted = ScriptedFleet::start(&[stream(&[TOKEN]), whole], "");
    eventually("it to be ejected", || {
        assert_eq!(send(&scripted).status, 200);
        let ejected = |worker: &serde_json::Value| worker["state"] == "ejected";
        scripted.router.workers().iter().any(ejected).then_some(())
    });
    assert_eq!(scripted.engines[0].requests(), 5);
}

#[test]
#[contract("F20", "I5")]
fn where_configured_a_stream_without_an_ending_ends_with_the_error_and_uncleanly() {
    let strict = "request: {strict_stream_completion: true}\n";
    let scripted = ScriptedFleet::one(stream(&[TOKEN, TOKEN]), strict);
    let reply = send(&scripted);
    assert!(!reply.clean);
    let text = reply.text();
    let rest = text
        .strip_prefix(&*String::from_utf8_lossy(&[TOKEN, TOKEN].concat()))
        .unwrap();
    assert!(
        rest.starts_with("data: {\"error\":{") && rest.contains("\"stream_interrupted\""),
        "{rest}"
    );
    assert!(!rest.contains("[DONE]") && !rest.contains("finish_reason"));
    assert_eq!(
        scripted.router.receipt_of(&reply)["outcome"]["kind"],
        "upstream_error"
    );
    assert_eq!(counted(&scripted), 1.0);
    // A stream without any content counts as no reply.
    scripted.engines[0].script(stream(&[]));
    let reply = send(&scripted);
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (502, "upstream_protocol")
    );
    scripted.engines[0].script(stream(&[TOKEN, LAST]));
    assert!(send(&scripted).clean);
    scripted.router.wait_until_idle();
}
