//! Equal requests for a repeatable reply are sent once.

use std::time::Duration;

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    PieceGate, Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply,
    chat, chunk, chunked, eventually, json_reply, stream_head, stream_reply, streamed,
};

const FINE: &str = r#"{"id":"fine","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]}"#;

struct CoalescingFixture {
    router: Program,
    engine: ScriptedEngine,
}

fn fleet(reply: ScriptedReply, config: &str) -> CoalescingFixture {
    let engine = ScriptedEngine::start(reply);
    let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
    CoalescingFixture { router, engine }
}

fn fine() -> ScriptedReply {
    ScriptedReply::whole(json_reply("200 OK", "", FINE))
}

/// Sends this reply when the gate opens, once each time.
fn gated(gate: &PieceGate, reply: Vec<u8>) -> ScriptedReply {
    ScriptedReply::Gated(vec![reply], gate.clone())
}

fn repeatable() -> Value {
    let mut body = chat("m", "hi", 4);
    body["temperature"] = json!(0);
    body
}

impl CoalescingFixture {
    fn start(&self, body: &Value) -> RawClient {
        RawClient::chat(&self.router.data(), body)
    }

    fn send(&self, body: &Value) -> RawReply {
        self.start(body).reply()
    }

    fn count(&self, result: &str) -> f64 {
        self.router.metric(
            "warmroute_deduplicated_requests_total",
            &format!("result=\"{result}\""),
        )
    }

    /// Waits until `count` requests have joined.
    fn joined(&self, count: f64) {
        eventually("requests to join", || {
            (self.count("joined") == count).then_some(())
        });
    }
}

#[test]
#[contract("CH11", "S45")]
fn equal_requests_in_flight_reach_the_engine_once() {
    let gate = PieceGate::new();
    let fleet = fleet(gated(&gate, json_reply("200 OK", "", FINE)), "");
    let mut clients: Vec<_> = (0..8).map(|_| fleet.start(&repeatable())).collect();
    fleet.joined(7.0);
    gate.open();
    let replies: Vec<_> = clients.iter_mut().map(RawClient::reply).collect();
    assert!(
        replies
            .iter()
            .all(|reply| reply.status == 200 && reply.text() == FINE),
        "{replies:?}"
    );
    assert_eq!(
        (
            fleet.engine.requests(),
            fleet.count("first"),
            fleet.count("joined")
        ),
        (1, 1.0, 7.0)
    );
    let joined: Vec<_> = replies
        .iter()
        .filter(|reply| reply.header("x-cache") == Some("HIT"))
        .collect();
    assert_eq!(joined.len(), 7);
    assert!(
        joined
            .iter()
            .all(|reply| reply.header("x-warmroute-cache-reason") == Some("joined"))
    );
    let mut ids: Vec<_> = replies
        .iter()
        .map(|reply| reply.header("x-request-id").expect("an id").to_owned())
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8, "each has its own id");
    let receipt = fleet.router.receipt_of(joined[0]);
    assert_eq!(
        (&receipt["method"], &receipt["winner"]),
        (&"dedup".into(), &Value::Null)
    );
    assert_eq!(
        (&receipt["candidates"], &receipt["outcome"]["kind"]),
        (&json!([]), &"ok".into())
    );
    assert_eq!(
        receipt["id"].as_str(),
        joined[0].header("x-warmroute-decision")
    );
    assert_eq!(
        fleet
            .router
            .metric("warmroute_decisions_total", "method=\"dedup\""),
        7.0
    );
    fleet.router.wait_until_idle();
}

#[test]
#[contract("CH11", "B6")]
fn only_requests_for_a_repeatable_reply_are_coalesced() {
    let fleet = fleet(fine(), "");
    let mut warm = repeatable();
    warm["temperature"] = json!(0.7);
    let mut absent = repeatable();
    absent
        .as_object_mut()
        .expect("an object")
        .remove("temperature");
    for body in [&warm, &absent] {
        assert!((0..2).all(|_| fleet.send(body).header("x-cache") == Some("BYPASS")));
    }
    assert_eq!(fleet.engine.requests(), 4);
    let mut seeded = warm.clone();
    seeded["seed"] = json!(7);
    fleet.send(&seeded);
    assert_eq!(fleet.send(&seeded).header("x-cache"), Some("HIT"));
    seeded["seed"] = json!(8);
    assert_eq!(fleet.send(&seeded).header("x-cache"), Some("BYPASS"));
    // A pin or a request for a fresh reply prevents a join.
    let body = repeatable().to_string();
    fleet.send(&repeatable());
    for header in [("x-warmroute-worker", "w"), ("cache-control", "no-cache")] {
        let reply = RawClient::post_with(
            &fleet.router.data(),
            "/v1/chat/completions",
            &[header],
            body.as_bytes(),
        );
        assert_eq!(
            (reply.status, reply.header("x-cache")),
            (200, Some("BYPASS")),
            "{header:?}"
        );
    }
}

#[test]
#[contract("CH11", "B6")]
fn a_finished_reply_answers_until_its_ttl_is_over() {
    let kept = fleet(fine(), "cache: {deduplication_ttl: 300ms}\n");
    // A machine that stands still may let the time pass.
    eventually("an answer without the engine", || {
        (kept.send(&repeatable()).header("x-cache") == Some("HIT")).then_some(())
    });
    assert_eq!(kept.count("replayed"), 1.0);
    eventually("the reply to be removed", || {
        (kept.send(&repeatable()).header("x-cache") == Some("BYPASS")).then_some(())
    });
    let never = fleet(fine(), "cache: {deduplication_ttl: 0}\n");
    assert!((0..3).all(|_| never.send(&repeatable()).header("x-cache") == Some("BYPASS")));
    let off = fleet(
        ScriptedReply::Late(Duration::from_millis(200), json_reply("200 OK", "", FINE)),
        "cache: {enable_deduplication: false}\n",
    );
    let mut clients: Vec<_> = (0..3).map(|_| off.start(&repeatable())).collect();
    assert!(
        clients
            .iter_mut()
            .all(|client| client.reply().status == 200)
    );
    assert_eq!(off.engine.requests(), 3);
}

#[test]
#[contract("CH11", "B6")]
fn errors_are_never_shared() {
    let gate = PieceGate::new();
    let refusal = json_reply("400 Bad", "", r#"{"error":{"message":"no"}}"#);
    let fleet = fleet(gated(&gate, refusal), "");
    let mut clients: Vec<_> = (0..3).map(|_| fleet.start(&repeatable())).collect();
    fleet.joined(2.0);
    (0..3).for_each(|_| gate.open());
    assert!(
        clients
            .iter_mut()
            .all(|client| client.reply().status == 400)
    );
    assert_eq!(
        (fleet.engine.requests(), fleet.count("not_shared")),
        (3, 2.0)
    );
    fleet.engine.script(fine());
    assert_eq!(fleet.send(&repeatable()).header("x-cache"), Some("BYPASS"));
    // A reply that broke off or reports an error is not kept either.
    let failed = FINE.replace("\"stop\"", "\"error\"");
    for (number, reply) in [
        ScriptedReply::Cut([stream_head(), chunk(b"data: {\"x\":1}\n\n")].concat()),
        ScriptedReply::whole(json_reply("200 OK", "", &failed)),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = streamed(repeatable());
        body["max_tokens"] = json!(100 + number);
        fleet.engine.script(reply);
        fleet.send(&body);
        fleet.engine.script(ScriptedReply::whole(stream_reply(&[
            b"data: {\"x\":2}\n\n",
            b"data: [DONE]\n\n",
        ])));
        assert_eq!(
            fleet.send(&body).header("x-cache"),
            Some("BYPASS"),
            "{number}"
        );
    }
    fleet.router.wait_until_idle();
}

#[test]
#[contract("F40", "CH11", "B6")]
fn the_followers_get_their_reply_when_the_leader_leaves() {
    // The leader leaves before the head.
    let gate = PieceGate::new();
    let fleet = fleet(gated(&gate, json_reply("200 OK", "", FINE)), "");
    let first = fleet.start(&repeatable());
    fleet.engine.next_request();
    let mut second = fleet.start(&repeatable());
    fleet.joined(1.0);
    drop(first);
    gate.open();
    assert_eq!(second.reply().text(), FINE);
    assert_eq!(fleet.engine.requests(), 1);
    // The leader leaves in the middle of a stream.
    let events: Vec<Vec<u8>> = (0..6)
        .map(|n| chunk(format!("data: {{\"n\":{n}}}\n\n").as_bytes()))
        .collect();
    let pieces = [
        vec![stream_head()],
        events,
        vec![chunked(&[b"data: [DONE]\n\n"])],
    ]
    .concat();
    let pass = |pieces: usize| (0..pieces).for_each(|_| gate.open());
    let later = pieces.len() - 2;
    let stream = ScriptedReply::Gated(pieces, gate.clone());
    fleet.engine.script(stream);
    let mut first = fleet.start(&streamed(repeatable()));
    // The client gets its head with the first event.
    pass(2);
    first.head();
    let mut second = fleet.start(&streamed(repeatable()));
    fleet.joined(2.0);
    drop(first);
    pass(later);
    let reply = second.reply();
    let expected: String = (0..6).map(|n| format!("data: {{\"n\":{n}}}\n\n")).collect();
    assert_eq!(reply.text(), format!("{expected}data: [DONE]\n\n"));
    fleet.router.wait_until_idle();
}

#[test]
#[contract("F40", "I6")]
fn the_upstream_request_is_cancelled_when_the_last_client_leaves() {
    let fleet = fleet(ScriptedReply::Silence, "");
    let first = fleet.start(&repeatable());
    fleet.engine.next_request();
    let second = fleet.start(&repeatable());
    fleet.joined(1.0);
    drop(first);
    drop(second);
    fleet.engine.hang_up();
    fleet.router.wait_until_idle();
    // The next request is sent anew.
    fleet.engine.script(fine());
    assert_eq!(fleet.send(&repeatable()).header("x-cache"), Some("BYPASS"));
}

#[test]
#[contract("CH11")]
fn a_stream_is_joined_late_from_its_start_and_byte_for_byte() {
    let stream = stream_reply(&[
        b"data: {\"a\":1}\n\n",
        b"data: {\"b\":2}\n\ndata: {\"c\":3}\n\n",
        b"data: [DONE]\n\n",
    ]);
    let fleet = fleet(
        ScriptedReply::Pieces(
            stream.chunks(37).map(<[u8]>::to_vec).collect(),
            Duration::from_millis(60),
        ),
        "",
    );
    let mut first = fleet.start(&streamed(repeatable()));
    first.head();
    first.chunk();
    let mut late = fleet.start(&streamed(repeatable()));
    let late = late.reply();
    let text = "data: {\"a\":1}\n\ndata: {\"b\":2}\n\ndata: {\"c\":3}\n\ndata: [DONE]\n\n";
    assert_eq!(
        (late.text().as_str(), late.header("x-cache")),
        (text, Some("HIT"))
    );
    // A finished stream is replayed; a plain reply is a different request.
    let again = fleet.send(&streamed(repeatable()));
    assert_eq!(
        (again.text().as_str(), again.header("content-type")),
        (text, late.header("content-type"))
    );
    assert_eq!(fleet.engine.requests(), 1);
    fleet.engine.script(fine());
    assert_eq!(fleet.send(&repeatable()).text(), FINE);
    drop(first);
    fleet.router.wait_until_idle();
}

#[test]
#[contract("CH11")]
fn a_follower_that_reads_nothing_delays_no_other_client() {
    let piece = vec![b'x'; 64 << 10];
    let body = piece.repeat(320); // 20 MiB: longer than what can be joined
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let gate = PieceGate::new();
    let fleet = fleet(gated(&gate, [head.as_bytes(), &body].concat()), "");
    let mut first = fleet.start(&repeatable());
    fleet.engine.next_request();
    let stuck = fleet.start(&repeatable());
    fleet.joined(1.0);
    gate.open();
    let reply = first.reply();
    assert_eq!((reply.status, reply.text().len()), (200, body.len()));
    drop(stuck);
    fleet.router.wait_until_idle();
}
