//! A second worker gets the request when the first is slow.

use std::time::Duration;

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    PieceGate, Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply,
    chat, eventually, json_reply, stream_reply, streamed,
};

struct HedgingPair {
    router: Program,
    slow: ScriptedEngine,
    quick: ScriptedEngine,
    /// The hedged requests by result before the test's own: a busy machine delays a reply.
    counted_before: Vec<(&'static str, f64)>,
}

fn fine(name: &str) -> ScriptedReply {
    ScriptedReply::whole(json_reply("200 OK", "", &format!(r#"{{"id":"{name}"}}"#)))
}

/// Sends this reply when the gate opens.
fn gated(gate: &PieceGate, reply: Vec<u8>) -> ScriptedReply {
    ScriptedReply::Gated(vec![reply], gate.clone())
}

/// Two workers under round robin; the next in turn sends `slow`.
fn pair(slow: ScriptedReply, config: &str) -> HedgingPair {
    let (one, other) = (
        ScriptedEngine::start(fine("slow")),
        ScriptedEngine::start(fine("quick")),
    );
    let config =
        format!("routing: {{policy: round_robin}}\nrequest: {{hedge_after: 150ms}}\n{config}");
    let workers = [
        format!("slow={}", one.url()),
        format!("quick={}", other.url()),
    ];
    let router = Program::serve_with(&config, &workers, &[]).ready(2);
    let mut pair = HedgingPair {
        router,
        slow: one,
        quick: other,
        counted_before: Vec::new(),
    };
    // Sends requests until it is the slow worker's turn.
    let quick_alone = json!([["quick", null, "ok"]]);
    eventually("the quick worker to answer alone", || {
        let reply = pair.send(&chat("m", "hi", 1));
        (pair.attempts(&reply) == quick_alone).then_some(())
    });
    pair.router.wait_until_idle();
    pair.counted_before = ["first", "second", "nobody"]
        .map(|result| (result, pair.count(result)))
        .into();
    pair.slow.forget();
    pair.quick.forget();
    pair.slow.script(slow);
    pair
}

impl HedgingPair {
    fn start(&self, body: &Value) -> RawClient {
        RawClient::chat(&self.router.data(), body)
    }

    fn send(&self, body: &Value) -> RawReply {
        self.start(body).reply()
    }

    fn attempts(&self, reply: &RawReply) -> Value {
        let receipt = self.router.receipt_of(reply);
        let attempts = receipt["attempts"].as_array().expect("a list").clone();
        attempts
            .iter()
            .map(|it| json!([it["target"]["worker"], it["class"], it["result"]]))
            .collect()
    }

    fn count(&self, result: &str) -> f64 {
        let counted = self.router.metric(
            "warmroute_hedged_requests_total",
            &format!("result=\"{result}\""),
        );
        let mut before = self.counted_before.iter();
        counted - before.find(|it| it.0 == result).map_or(0.0, |it| it.1)
    }
}

#[test]
fn the_first_attempt_to_answer_wins_and_the_other_is_cancelled() {
    let pair = pair(ScriptedReply::Silence, "");
    let reply = pair.send(&chat("m", "hi", 1));
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("quick")),
        "{}",
        reply.text()
    );
    pair.slow.hang_up();
    assert_eq!(
        pair.attempts(&reply),
        json!([["slow", null, "cancelled"], ["quick", null, "ok"]])
    );
    assert_eq!(pair.count("second"), 1.0);
    // Slowness is not a failure.
    let states: Vec<_> = pair
        .router
        .workers()
        .iter()
        .map(|worker| worker["state"].clone())
        .collect();
    assert_eq!(states, ["ready", "ready"]);
    pair.router.wait_until_idle();
}

#[test]
fn the_first_attempt_may_still_win() {
    let gate = PieceGate::new();
    let answer = json_reply("200 OK", "", r#"{"id":"slow"}"#);
    let pair = pair(gated(&gate, answer), "");
    pair.quick.script(ScriptedReply::Silence);
    let mut client = pair.start(&chat("m", "hi", 1));
    pair.quick.next_request();
    gate.open();
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("slow")),
        "{}",
        reply.text()
    );
    assert_eq!(reply.json()["id"], "slow");
    pair.quick.hang_up();
    assert_eq!(
        pair.attempts(&reply),
        json!([["quick", null, "cancelled"], ["slow", null, "ok"]])
    );
    assert_eq!(pair.count("first"), 1.0);
    pair.router.wait_until_idle();
}

#[test]
fn a_stream_is_taken_from_the_worker_that_sends_the_first_event() {
    let pair = pair(ScriptedReply::Silence, "");
    pair.quick.script(ScriptedReply::whole(stream_reply(&[
        b"data: {\"q\":1}\n\n",
        b"data: [DONE]\n\n",
    ])));
    let reply = pair.send(&streamed(chat("m", "hi", 1)));
    assert_eq!(reply.text(), "data: {\"q\":1}\n\ndata: [DONE]\n\n");
    pair.slow.hang_up();
    pair.router.wait_until_idle();
}

#[test]
fn a_failed_attempt_leaves_the_other_and_two_failures_are_reported() {
    let gates = [PieceGate::new(), PieceGate::new()];
    let broken = |gate: &PieceGate| gated(gate, json_reply("503 Full", "", "{}"));
    let pair = pair(broken(&gates[0]), "");
    let answer = json_reply("200 OK", "", r#"{"id":"quick"}"#);
    pair.quick.script(gated(&gates[1], answer));
    let hedged = || {
        let client = pair.start(&chat("m", "hi", 1));
        pair.slow.next_request();
        pair.quick.next_request();
        client
    };
    let mut client = hedged();
    gates[0].open();
    // Gives the failure time to reach the router before the answer.
    std::thread::sleep(Duration::from_millis(200));
    gates[1].open();
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("quick")),
        "{}",
        reply.text()
    );
    assert_eq!(
        pair.attempts(&reply),
        json!([["slow", "C2", "status"], ["quick", null, "ok"]])
    );
    pair.quick.script(broken(&gates[1]));
    let mut client = hedged();
    gates.iter().for_each(PieceGate::open);
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (503, "overloaded"),
        "{}",
        reply.text()
    );
    assert_eq!(pair.count("nobody"), 1.0);
    pair.router.wait_until_idle();
}

#[test]
fn a_pinned_request_gets_its_worker_however_long_it_takes() {
    let pair = pair(
        ScriptedReply::Late(
            Duration::from_millis(500),
            json_reply("200 OK", "", r#"{"id":"slow"}"#),
        ),
        "",
    );
    let body = chat("m", "hi", 1).to_string();
    let pinned = [("x-warmroute-worker", "slow")];
    let before = pair.quick.requests();
    let reply = RawClient::post_with(
        &pair.router.data(),
        "/v1/chat/completions",
        &pinned,
        body.as_bytes(),
    );
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("slow"))
    );
    assert_eq!(pair.quick.requests(), before);
    assert_eq!(
        pair.count("first") + pair.count("second") + pair.count("nobody"),
        0.0
    );
}

#[test]
#[contract("I6")]
fn a_client_that_leaves_cancels_both_attempts() {
    let pair = pair(ScriptedReply::Silence, "");
    pair.quick.script(ScriptedReply::Silence);
    let client = RawClient::chat(&pair.router.data(), &chat("m", "hi", 1));
    pair.slow.next_request();
    pair.quick.next_request();
    drop(client);
    pair.slow.hang_up();
    pair.quick.hang_up();
    pair.router.wait_until_idle();
}

#[test]
fn a_worker_of_another_dialect_does_not_block_a_hedge_to_one_of_the_same_dialect() {
    let slow = ScriptedEngine::start(ScriptedReply::Silence);
    let (quick, native) = (
        ScriptedEngine::start(fine("quick")),
        ScriptedEngine::with_native_messages(fine("native")),
    );
    let config = "routing: {policy: round_robin}\nrequest: {hedge_after: 150ms, timeout: 5s}\n";
    let workers = [
        format!("slow={}", slow.url()),
        format!("n1={}", native.url()),
        format!("quick={}", quick.url()),
        format!("n2={}", native.url().replace("127.0.0.1", "localhost")),
    ];
    let router = Program::serve_with(config, &workers, &[]).ready(4);
    for n in 0..12 {
        let reply = RawClient::chat(&router.data(), &chat("m", &format!("{n}"), 1)).reply();
        assert_eq!(reply.status, 200, "request {n}: {}", reply.text());
    }
    assert!(slow.requests() > 0, "it had its turn");
    router.wait_until_idle();
    // A busy machine delays others, too, whose hedge may go to the slow one.
    let hedged = ["first", "second"].map(|result| {
        let label = format!("result=\"{result}\"");
        router.metric("warmroute_hedged_requests_total", &label)
    });
    assert!(hedged[1] > 0.0, "{hedged:?}");
    let of_the_slow_one = slow.requests() as f64;
    assert!(hedged[0] + hedged[1] >= of_the_slow_one, "{hedged:?}");
}

#[test]
fn rewrites_are_reported_whichever_attempt_wins() {
    let pair = pair(ScriptedReply::Silence, "");
    let chat = r#"{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}"#;
    pair.quick
        .script(ScriptedReply::whole(json_reply("200 OK", "", chat)));
    let body =
        json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]})
            .to_string();
    let reply = RawClient::post(&pair.router.data(), "/v1/messages", body.as_bytes());
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("quick")),
        "{}",
        reply.text()
    );
    assert_eq!(reply.header("x-warmroute-rewrites"), Some("messages"));
    assert_eq!(
        pair.router.receipt_of(&reply)["rewrites"],
        json!(["messages"])
    );
}

#[test]
fn a_priority_sent_only_to_the_first_worker_is_not_reported_for_the_hedge() {
    let engines = [
        ScriptedEngine::start(ScriptedReply::Silence),
        ScriptedEngine::start(fine("quick")),
    ];
    let worker = |(name, engine): (&str, &ScriptedEngine)| {
        format!(
            "  - {{name: {name}, type: vllm, url: \"{}\"}}\n",
            engine.url()
        )
    };
    let workers: String = ["slow", "quick"]
        .into_iter()
        .zip(&engines)
        .map(worker)
        .collect();
    let config = format!(
        "workers:\n{workers}routing: {{policy: round_robin}}\nrequest: {{hedge_after: 150ms}}\nqueue: {{engine_priority: true}}\n"
    );
    let router = Program::serve_with(&config, &[], &[]).ready(2);
    let body = chat("m", "hi", 1);
    let (mut rewritten, mut hedged) = (0, 0);
    while hedged == 0 {
        let reply = RawClient::chat(&router.data(), &body).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let as_it_came = engines[1].next_request().body == body.to_string().into_bytes();
        assert_eq!(
            reply.header("x-warmroute-rewrites"),
            (!as_it_came).then_some("priority")
        );
        rewritten += u32::from(!as_it_came);
        hedged = engines[0].requests();
        assert!(rewritten < 10, "the slow one has its turn");
    }
}

#[test]
#[contract("F14")]
fn a_throttling_hedge_target_gets_a_cooldown_too() {
    let gate = PieceGate::new();
    let answer = json_reply("200 OK", "", r#"{"id":"slow"}"#);
    let pair = pair(gated(&gate, answer), "");
    pair.quick.once(ScriptedReply::whole(json_reply(
        "429 Slow down",
        "retry-after: 60\r\n",
        "{}",
    )));
    let throttled = || {
        let name = "warmroute_upstream_throttled_total";
        pair.router.metric(name, "quick")
    };
    let mut client = pair.start(&chat("m", "hi", 1));
    eventually("the hedge to be throttled", || {
        (throttled() == 1.0).then_some(())
    });
    gate.open();
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("slow")),
        "{}",
        reply.text()
    );
    assert_eq!(throttled(), 1.0);
    pair.slow.script(fine("slow"));
    for _ in 0..4 {
        assert_eq!(
            pair.send(&chat("m", "hi", 1)).header("x-warmroute-worker"),
            Some("slow")
        );
    }
}
