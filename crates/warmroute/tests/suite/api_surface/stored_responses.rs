//! `/v1/responses/{id}` and below: a stored response, at the worker that created it.

use contract_id::contract;
use serde_json::json;

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, eventually,
    json_reply, stream_reply,
};

/// Two engines whose responses have the ids `resp_a` and `resp_b`.
struct Pair {
    engines: Vec<ScriptedEngine>,
    router: Program,
}

impl Pair {
    fn start() -> Self {
        let engine = |id: &str| {
            let response = json!({"id": id, "object": "response", "status": "queued"});
            let reply = json_reply("200 OK", "", &response.to_string());
            ScriptedEngine::start(ScriptedReply::whole(reply))
        };
        let engines = vec![engine("resp_a"), engine("resp_b")];
        let workers = format!("a={}", engines[0].url());
        let workers = [workers, format!("b={}", engines[1].url())];
        let yaml = "health_checks: {interval: 1s, unhealthy_threshold: 1}\n";
        let router = Program::serve_with(yaml, &workers, &["--policy", "round_robin"]).ready(2);
        let pair = Self { engines, router };
        // One response at each engine.
        for _ in 0..2 {
            let body = br#"{"model":"m","input":"hi","background":true}"#;
            let reply = RawClient::post(&pair.router.data(), "/v1/responses", body);
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        for engine in &pair.engines {
            assert_eq!(engine.seen_lines(), ["POST /v1/responses HTTP/1.1"]);
        }
        pair
    }

    fn ask(&self, method: &str, target: &str) -> RawReply {
        let mut client = RawClient::connect(&self.router.data());
        client.send(method, target, &[], b"");
        client.reply()
    }

    fn seen(&self) -> [Vec<String>; 2] {
        [0, 1].map(|number| self.engines[number].seen_lines())
    }
}

#[test]
#[contract("V36")]
fn each_request_about_a_response_goes_to_its_worker_byte_for_byte() {
    let pair = Pair::start();
    for (method, below) in [
        ("GET", ""),
        ("GET", "?include=usage&include=a%20b"),
        ("GET", "/input_items?limit=2&after=x"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ] {
        for (number, (id, name)) in [("resp_a", "a"), ("resp%5Fb", "b")].into_iter().enumerate() {
            let target = format!("/v1/responses/{id}{below}");
            let text = format!(r#"{{ "of": "{name}", "n": 1e2 }}"#);
            let direct = json_reply("200 OK", "x-engine: kept\r\n", &text);
            pair.engines[number].answer_bytes(&target, direct);
            let reply = pair.ask(method, &target);
            assert_eq!((reply.status, reply.text()), (200, text), "{target}");
            assert_eq!(reply.header("x-engine"), Some("kept"));
            assert_eq!(reply.header("x-warmroute-worker"), Some(name));
            assert_eq!(reply.header("x-warmroute-rewrites"), None);
            let receipt = pair.router.receipt_of(&reply);
            assert_eq!(receipt["route"], "/v1/responses/");
            assert_eq!(receipt["prompt"]["source"], "none");
            let seen = pair.seen();
            assert_eq!(seen[number], [format!("{method} {target} HTTP/1.1")]);
            assert!(seen[1 - number].is_empty(), "{seen:?}");
        }
    }
    pair.router.wait_until_idle();
}

#[test]
#[contract("V36")]
fn the_stream_of_a_response_that_is_taken_up_again_is_relayed() {
    let pair = Pair::start();
    let target = "/v1/responses/resp_b?stream=true&starting_after=3";
    let pieces: [&[u8]; 2] = [
        b"event: response.output_text.delta\ndata: {\"n\": 1e2}\n\n",
        b"event: response.completed\ndata: {}\n\n",
    ];
    pair.engines[1].answer_bytes(target, stream_reply(&pieces));
    let reply = pair.ask("GET", target);
    assert_eq!((reply.status, reply.clean), (200, true));
    let content_type = reply.header("content-type");
    assert_eq!(content_type, Some("text/event-stream; charset=utf-8"));
    assert_eq!(reply.body, pieces.concat());
    let request = pair.engines[1].seen_lines();
    assert_eq!(request, [format!("GET {target} HTTP/1.1")]);
    pair.router.wait_until_idle();
}

#[test]
#[contract("V36", "F16")]
fn an_engines_refusal_about_a_response_is_relayed() {
    let pair = Pair::start();
    let text = r#"{ "error": {"message": "Cannot cancel a synchronous response."} }"#;
    pair.engines[0].answer("/v1/responses/resp_a/cancel", "400 Bad Request", text);
    let reply = pair.ask("POST", "/v1/responses/resp_a/cancel");
    assert_eq!((reply.status, reply.text().as_str()), (400, text));
}

#[test]
#[contract("I4")]
fn a_cancellation_that_may_have_arrived_is_not_sent_again() {
    let pair = Pair::start();
    // Without a reply of its own the route gets the scripted one.
    pair.engines[0].forget();
    let before = pair.engines[0].requests();
    pair.engines[0].script(ScriptedReply::Cut(Vec::new()));
    let reply = pair.ask("POST", "/v1/responses/resp_a/cancel");
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (502, "upstream_reset")
    );
    assert_eq!(pair.engines[0].requests() - before, 1);
    assert_eq!(pair.seen()[1], [""; 0]);
}

#[test]
#[contract("V36")]
fn an_unknown_id_is_an_error_of_the_router_and_no_engine_is_asked() {
    let pair = Pair::start();
    let long = format!("/v1/responses/{}", "a".repeat(257));
    for (method, target, status, code) in [
        ("GET", "/v1/responses/resp_x", 404, "response_not_found"),
        ("DELETE", "/v1/responses/resp_x", 404, "response_not_found"),
        (
            "POST",
            "/v1/responses/resp_x/cancel",
            404,
            "response_not_found",
        ),
        (
            "GET",
            "/v1/responses/resp_x/input_items",
            404,
            "response_not_found",
        ),
        (
            "GET",
            "/v1/responses/resp_a%2F..%2Fx",
            400,
            "invalid_request",
        ),
        ("GET", &long, 400, "invalid_request"),
        ("POST", "/v1/responses/resp_a", 404, "unknown_route"),
        ("GET", "/v1/responses/resp_a/cancel", 404, "unknown_route"),
        ("GET", "/v1/responses/resp_a/other", 404, "unknown_route"),
        ("PUT", "/v1/responses/resp_a", 405, "method_not_allowed"),
    ] {
        let reply = pair.ask(method, target);
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (status, code),
            "{method} {target}"
        );
    }
    let text = pair.ask("GET", "/v1/responses/resp_x").text();
    for part in ["resp_x", "3600 s", "65536", "restarts"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let other = pair.ask("PUT", "/v1/responses/resp_a");
    assert_eq!(other.header("allow"), Some("DELETE, GET, HEAD, POST"));
    assert_eq!(pair.seen(), [const { Vec::<String>::new() }; 2]);
}

#[test]
#[contract("V36")]
fn a_response_whose_worker_is_down_or_gone_is_an_error_that_names_the_worker() {
    let mut pair = Pair::start();
    drop(pair.engines.remove(0));
    let target = "/v1/responses/resp_a";
    let down = eventually("the worker to be down", || {
        let reply = pair.ask("GET", target);
        reply.text().contains("it is down").then_some(reply)
    });
    assert_eq!(
        (down.status, down.error_code().as_str()),
        (503, "no_worker")
    );
    assert!(down.text().contains(r#"worker \"a\""#), "{}", down.text());
    assert!(down.header("retry-after").is_some());
    assert_eq!(pair.engines[0].seen_lines(), [""; 0]);

    let mut admin = RawClient::connect(&pair.router.admin());
    admin.send("DELETE", "/admin/workers/a", &[], b"");
    let removed = admin.reply();
    assert!(removed.status < 300, "{}", removed.text());
    let gone = eventually("the worker to be gone", || {
        let reply = pair.ask("GET", target);
        (reply.status == 404).then_some(reply)
    });
    assert_eq!(gone.error_code(), "response_not_found");
    assert!(gone.text().contains(r#"worker \"a\""#), "{}", gone.text());
    // The other engine's response is still there.
    pair.engines[0].answer("/v1/responses/resp_b", "200 OK", "{}");
    assert_eq!(pair.ask("GET", "/v1/responses/resp_b").status, 200);
}
