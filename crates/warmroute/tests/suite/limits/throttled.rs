//! Workers that answer 429 with `Retry-After`.

use contract_id::contract;

use crate::{
    faults::fleet::{CHAT, ScriptedFleet, fine},
    harness::{
        RawClient, RawReply, RouterQueries as _, ScriptedReply, chat, eventually, json_reply,
    },
};

fn throttled(seconds: u32) -> ScriptedReply {
    ScriptedReply::whole(json_reply(
        "429 Slow down",
        &format!("retry-after: {seconds}\r\n"),
        r#"{"error":"slow down"}"#,
    ))
}

fn send(scripted: &ScriptedFleet) -> RawReply {
    scripted.post(&chat("m", "hi", 1))
}

#[test]
#[contract("F14")]
fn a_throttling_worker_gets_no_request_while_another_is_available() {
    let scripted = ScriptedFleet::start(&[throttled(60), ScriptedReply::whole(fine())], "");
    let first = &scripted.engines[0];
    eventually("it to get a request", || {
        assert_eq!(
            send(&scripted).status,
            200,
            "another worker takes the request at once"
        );
        (first.requests() == 1).then_some(())
    });
    for _ in 0..10 {
        let reply = send(&scripted);
        assert_eq!(reply.status, 200);
        let excluded = &scripted.router.receipt_of(&reply)["excluded"];
        assert_eq!(excluded[0]["target"]["worker"], first.address());
        assert_eq!(excluded[0]["reason"], "busy");
    }
    assert_eq!(first.requests(), 1);
    assert_eq!(
        scripted
            .router
            .metric("warmroute_upstream_throttled_total", first.address()),
        1.0
    );
    assert!(
        scripted
            .router
            .workers()
            .iter()
            .all(|worker| worker["state"] == "ready"),
        "it is healthy"
    );
}

#[test]
#[contract("F14")]
fn a_throttling_worker_is_used_again_after_its_cooldown() {
    let scripted = ScriptedFleet::start(
        &[ScriptedReply::whole(fine()), ScriptedReply::whole(fine())],
        "",
    );
    let first = &scripted.engines[0];
    first.once(throttled(1));
    eventually("it to get a request", || {
        assert_eq!(send(&scripted).status, 200);
        (first.requests() == 1).then_some(())
    });
    eventually("it to be used again", || {
        assert_eq!(send(&scripted).status, 200);
        (first.requests() > 1).then_some(())
    });
}

#[test]
#[contract("F14")]
fn the_only_worker_gets_requests_during_its_cooldown() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    scripted.engines[0].once(throttled(60));
    assert_eq!(send(&scripted).status, 429);
    assert_eq!(send(&scripted).status, 200);
    // A worker that is the only one allowed for a request counts as the only one.
    let scripted = ScriptedFleet::start(&[throttled(60), ScriptedReply::whole(fine())], "");
    let first = &scripted.engines[0];
    let pinned = || {
        let headers = [("x-warmroute-worker", first.address())];
        RawClient::post_with(
            &scripted.router.data(),
            CHAT,
            &headers,
            chat("m", "hi", 1).to_string().as_bytes(),
        )
    };
    assert_eq!(pinned().status, 429);
    first.script(ScriptedReply::whole(fine()));
    assert_eq!(pinned().status, 200);
    assert_eq!(scripted.engines[1].requests(), 0);
}

#[test]
#[contract("F14")]
fn when_all_workers_throttle_the_client_gets_the_longest_retry_after() {
    let scripted = ScriptedFleet::start(&[throttled(3), throttled(9), throttled(5)], "");
    for _ in 0..3 {
        let reply = send(&scripted);
        assert_eq!(
            (reply.status, reply.header("retry-after")),
            (429, Some("9"))
        );
    }
    assert!(
        scripted.requests() >= 9,
        "each request reached all three: {}",
        scripted.requests()
    );
}
