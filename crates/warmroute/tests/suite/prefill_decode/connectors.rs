//! Engines that connect to each other: both legs are sent at once.

use std::time::Duration;

use serde_json::{Value, json};

use super::pools::{CHAT, ScriptedPools, rewrites, yes};
use crate::harness::{
    PieceGate, RawClient, RouterQueries as _, ScriptedReply, SeenRequest, chat, json_reply,
    streamed,
};

fn body(seen: &SeenRequest) -> Value {
    serde_json::from_slice(&seen.body).expect("a body is JSON")
}

#[test]
fn sglang_gets_one_room_for_both_legs() {
    let scripted =
        ScriptedPools::start("sglang", ScriptedReply::whole(whole("{}")), delayed_reply());
    let reply = scripted.send("r", &streamed(chat("m", "hi", 4)).to_string());
    let (prefill, decode) = (
        body(&scripted.prefill.next_request()),
        body(&scripted.decode.next_request()),
    );
    let port: u64 = scripted
        .prefill
        .address()
        .rsplit_once(':')
        .expect("a port")
        .1
        .parse()
        .expect("a number");
    for (leg, stream) in [(&prefill, false), (&decode, true)] {
        assert_eq!(
            (&leg["bootstrap_host"], &leg["bootstrap_port"]),
            (&json!("127.0.0.1"), &json!(port))
        );
        assert_eq!(
            (&leg["stream"], &leg["max_tokens"]),
            (&json!(stream), &json!(4))
        );
    }
    let room = prefill["bootstrap_room"].as_u64().expect("a room");
    assert!(i64::try_from(room).is_ok(), "{room}");
    assert_eq!(decode["bootstrap_room"], room);
    let receipt = scripted.router.receipt("r");
    assert_eq!(
        (reply.status, rewrites(&reply, &receipt)),
        (200, vec!["kv_transfer".to_owned()])
    );
    assert_eq!(receipt["prefill"]["skipped"], false);
    assert!(receipt["prefill"]["ms"].is_number());
    scripted.router.wait_until_idle();
}

#[test]
fn no_two_requests_share_a_bootstrap_room() {
    let scripted = ScriptedPools::start("sglang", ScriptedReply::whole(whole("{}")), yes());
    let rooms: Vec<Value> = (0..3)
        .map(|n| {
            scripted.send(&format!("r{n}"), &chat("m", "hi", 4).to_string());
            body(&scripted.decode.next_request())["bootstrap_room"].clone()
        })
        .collect();
    assert!(
        rooms[0] != rooms[1] && rooms[1] != rooms[2] && rooms[0] != rooms[2],
        "{rooms:?}"
    );
}

#[test]
fn a_decode_worker_whose_prefill_failed_is_disconnected_and_gets_the_whole_request() {
    for connector in ["sglang", "mooncake"] {
        let gate = PieceGate::new();
        let busy = ScriptedReply::Gated(vec![json_reply("503 Busy", "", "{}")], gate.clone());
        let scripted = ScriptedPools::start(connector, busy, yes());
        scripted.decode.once(ScriptedReply::Silence);
        let request = chat("m", "hi", 4).to_string();
        let mut client = RawClient::connect(&scripted.router.data());
        let id = [("x-request-id", "r")];
        client.send("POST", CHAT, &id, request.as_bytes());
        let leg = scripted.decode.next_request();
        // The decode worker has its leg; the prefill worker refuses each request from now on.
        (0..10).for_each(|_| gate.open());
        let reply = client.reply();
        assert_eq!(
            (
                reply.status,
                reply.json()["choices"][0]["message"]["content"].as_str()
            ),
            (200, Some("yes"))
        );
        scripted.decode.hang_up();
        assert_ne!(leg.body, request.as_bytes());
        assert_eq!(
            scripted.decode.next_request().body,
            request.as_bytes(),
            "without prefill fields"
        );
        let receipt = scripted.router.receipt("r");
        assert_eq!(
            receipt["prefill"]["reason"], "prefill_failed",
            "{connector}"
        );
        assert_eq!(rewrites(&reply, &receipt), [""; 0]);
        scripted.router.wait_until_idle();
    }
}

#[test]
fn both_legs_run_before_either_answers_and_end_with_their_client() {
    for connector in ["sglang", "mooncake"] {
        let scripted =
            ScriptedPools::start(connector, ScriptedReply::Silence, ScriptedReply::Silence);
        let client = RawClient::chat(&scripted.router.data(), &streamed(chat("m", "hi", 4)));
        scripted.prefill.next_request();
        scripted.decode.next_request();
        drop(client);
        scripted.prefill.hang_up();
        scripted.decode.hang_up();
        scripted.router.wait_until_idle();
    }
}

#[test]
fn mooncake_engines_share_a_transfer_id_and_an_engine_id_that_is_fetched_once() {
    let scripted = ScriptedPools::start(
        "mooncake",
        ScriptedReply::whole(whole("{}")),
        delayed_reply(),
    );
    let mut transfer_ids = Vec::new();
    for n in 0..2 {
        let reply = scripted.send(&format!("r{n}"), &chat("m", "hi", 4).to_string());
        let receipt = scripted.router.receipt(&format!("r{n}"));
        assert_eq!(
            (reply.status, rewrites(&reply, &receipt)),
            (200, vec!["kv_transfer".to_owned()])
        );
        let (prefill, decode) = (
            body(&scripted.prefill.next_request()),
            body(&scripted.decode.next_request()),
        );
        let (ours, theirs) = (
            &prefill["kv_transfer_params"],
            &decode["kv_transfer_params"],
        );
        assert_eq!(
            (&prefill["max_tokens"], &prefill["stream"]),
            (&json!(1), &json!(false))
        );
        assert_eq!(
            (&ours["do_remote_decode"], &ours["do_remote_prefill"]),
            (&json!(true), &json!(false))
        );
        assert!(
            ours["transfer_id"]
                .as_str()
                .is_some_and(|id| id.starts_with("xfer-")),
            "{ours}"
        );
        let want = json!({
            "do_remote_decode": false,
            "do_remote_prefill": true,
            "transfer_id": ours["transfer_id"],
            "remote_engine_id": "engine-0",
            "remote_bootstrap_addr": scripted.prefill.url(),
        });
        assert_eq!(*theirs, want);
        assert_eq!(decode["max_tokens"], 4);
        transfer_ids.push(ours["transfer_id"].clone());
    }
    assert_ne!(transfer_ids[0], transfer_ids[1]);
    scripted.router.wait_until_idle();
}

fn whole(body: &str) -> Vec<u8> {
    json_reply("200 OK", "", body)
}

/// Late enough that a prefill that answers at once has ended before.
fn delayed_reply() -> ScriptedReply {
    let ScriptedReply::Pieces(pieces, _) = yes() else {
        unreachable!("a whole reply")
    };
    ScriptedReply::Late(Duration::from_millis(200), pieces.concat())
}
