//! Engine replies with an error status, and `Retry-After`.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use contract_id::contract;

use super::fleet::{CHAT, ScriptedFleet, attempts, fine};
use crate::harness::{
    RawClient, RawReply, RouterQueries as _, ScriptedReply, chat, eventually, json_reply,
};

fn status(line: &str, head: &str) -> ScriptedReply {
    ScriptedReply::whole(json_reply(
        line,
        head,
        r#"{"object":"error","message":"internal 10.0.0.7"}"#,
    ))
}

fn retry_after(reply: &RawReply) -> Option<u64> {
    reply
        .header("retry-after")
        .map(|seconds| seconds.parse().unwrap())
}

#[test]
#[contract("F12", "S71")]
fn an_engines_500_is_one_attempt_and_keeps_its_status_but_not_its_message() {
    let page = b"HTTP/1.1 500 Oops\r\ncontent-type: text/html\r\ncontent-length: 20\r\n\r\n<h1>host 10.0.0.7</h1>";
    let scripted = ScriptedFleet::start(
        &[
            ScriptedReply::Cut(page.to_vec()),
            ScriptedReply::Cut(page.to_vec()),
        ],
        "",
    );
    let reply = scripted.post(&chat("m", "hi", 1));
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (500, "internal")
    );
    assert!(!reply.text().contains("10.0.0.7"));
    assert_eq!(scripted.requests(), 1);
    assert_eq!(
        attempts(&scripted.router.receipt_of(&reply)),
        [(None, "status")]
    );
}

#[test]
#[contract("F13")]
fn a_503_goes_to_another_worker_and_gives_the_longest_retry_after_when_all_are_loading() {
    let loading = |seconds: u32| status("503 Loading", &format!("retry-after: {seconds}\r\n"));
    let scripted = ScriptedFleet::start(&[loading(7), ScriptedReply::whole(fine())], "");
    for _ in 0..4 {
        assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200);
    }
    assert!(
        scripted.engines[0].requests() >= 1,
        "it got a request at all"
    );
    scripted.engines[1].script(loading(3));
    let reply = scripted.post(&chat("m", "hi", 1));
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (503, "overloaded")
    );
    assert_eq!(retry_after(&reply), Some(7));
    assert!(!reply.text().contains("10.0.0.7"));
    let states: Vec<_> = scripted
        .router
        .workers()
        .iter()
        .map(|worker| worker["state"].clone())
        .collect();
    assert!(states.iter().all(|state| state != "ejected"), "{states:?}");
}

#[test]
#[contract("F15")]
fn a_429_goes_to_another_worker_and_is_passed_on_with_a_bounded_wait_when_all_throttle() {
    let throttled = |head: &str| status("429 Slow down", head);
    let scripted = ScriptedFleet::start(
        &[
            throttled("retry-after: 3\r\n"),
            ScriptedReply::whole(fine()),
        ],
        "",
    );
    for _ in 0..4 {
        assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200);
    }
    assert!(
        scripted.engines[0].requests() >= 1,
        "it got a request at all"
    );
    for (head, least, most) in [
        ("retry-after: 3\r\n", 3, 3),
        ("retry-after: 99999999\r\n", 60, 60),
        ("retry-after: soon\r\n", 1, 60),
        ("retry-after: -5\r\n", 1, 60),
        ("", 1, 60),
    ] {
        scripted
            .engines
            .iter()
            .for_each(|engine| engine.script(throttled(head)));
        let reply = scripted.post(&chat("m", "hi", 1));
        assert_eq!(reply.status, 429);
        let wait = retry_after(&reply).expect("a 429 says when to come back");
        assert!((least..=most).contains(&wait), "{head:?} became {wait}");
    }
}

#[test]
fn a_fleet_that_refuses_everything_does_not_get_three_times_the_requests() {
    all_refuse(0);
}

#[test]
fn reservations_do_not_enlarge_the_retry_budget() {
    all_refuse(300);
}

fn all_refuse(reservations: usize) {
    let slow_503 =
        ScriptedReply::Late(Duration::from_millis(400), json_reply("503 Full", "", "{}"));
    let scripted = ScriptedFleet::start(&[slow_503.clone(), slow_503.clone(), slow_503], "");
    for n in 0..reservations {
        let body = format!(r#"{{"model":"m","prompt":"hi","request_id":"r{n}"}}"#);
        assert_eq!(
            RawClient::post(&scripted.router.data(), "/v1/route", body.as_bytes()).status,
            200
        );
    }
    let mut clients: Vec<_> = (0..30)
        .map(|_| RawClient::chat(&scripted.router.data(), &chat("m", "hi", 1)))
        .collect();
    for client in &mut clients {
        assert_eq!(client.reply().status, 503);
    }
    eprintln!(
        "30 requests to a fleet of 503s became {} attempts",
        scripted.requests()
    );
    // At any time a fifth of the requests in flight may be retries, so there are two rounds of six.
    assert!(
        scripted.requests() <= 50,
        "{} attempts for 30 requests",
        scripted.requests()
    );
    for n in 0..reservations {
        let mut client = RawClient::connect(&scripted.router.data());
        client.send("DELETE", &format!("/v1/route/r{n}"), &[], b"");
        assert_eq!(client.reply().status, 200);
    }
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F4")]
fn when_all_engines_refuse_the_reply_is_503_with_retry_after_and_the_router_is_not_ready() {
    let scripted = ScriptedFleet::start(&[ScriptedReply::Silence, ScriptedReply::Silence], "");
    let ScriptedFleet { engines, router } = scripted;
    drop(engines);
    let reply = eventually("the engines to be gone", || {
        let reply = RawClient::post(
            &router.data(),
            super::fleet::CHAT,
            chat("m", "hi", 1).to_string().as_bytes(),
        );
        (reply.status == 503).then_some(reply)
    });
    assert_eq!(reply.error_code(), "no_worker");
    assert!((1..=60).contains(&retry_after(&reply).unwrap()));
    // A worker that reset a connection while it stopped is found down by the following check.
    eventually("the router to be not ready", || {
        let ready = RawClient::get(&router.data(), "/readyz");
        (ready.status == 503 && ready.json()["reasons"][0] == "no usable worker").then_some(())
    });
    router.wait_until_idle();
}

#[test]
#[contract("S71")]
fn the_reason_phrase_of_an_engine_is_replaced_by_the_usual_one() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let address = scripted.router.data();
    for (line, expected) in [
        ("200 /usr/lib/engine.py", "HTTP/1.1 200 OK"),
        ("400 at 0x7f3a5c001240", "HTTP/1.1 400 Bad Request"),
        ("404 10.0.0.7:8000", "HTTP/1.1 404 Not Found"),
        ("422 Traceback", "HTTP/1.1 422 Unprocessable Entity"),
        ("429 host 10.0.0.7", "HTTP/1.1 429 Too Many Requests"),
        (
            "500 at 0x7f3a5c001240",
            "HTTP/1.1 500 Internal Server Error",
        ),
        ("503 host 10.0.0.7", "HTTP/1.1 503 Service Unavailable"),
    ] {
        scripted.engines[0].script(ScriptedReply::whole(json_reply(line, "", "{}")));
        let body = chat("m", "hi", 1).to_string();
        let mut client = TcpStream::connect(&address).expect("the listener accepts");
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client
            .write_all(format!("{head}{body}").as_bytes())
            .expect("the request is sent");
        let mut reply = String::new();
        client
            .read_to_string(&mut reply)
            .expect("the reply is text");
        assert_eq!(reply.lines().next(), Some(expected), "{reply}");
    }
}

#[test]
#[contract("S71")]
fn the_text_of_a_refusal_does_not_pass_if_it_is_of_the_engines_server() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let address = scripted.engines[0].address();
    let itself = format!("http://{address} refused");
    for (line, text, code) in [
        (
            "400 Bad Request",
            "<Request object at 0x7f3a5c001240>",
            "invalid_request",
        ),
        (
            "422 Unprocessable Entity",
            "Traceback (most recent call last): ...",
            "invalid_request",
        ),
        ("404 Not Found", "no /opt/vllm/model.py", "invalid_request"),
        (
            "400 Bad Request",
            "cannot reach 10.0.0.7:29500",
            "invalid_request",
        ),
        ("400 Bad Request", &*itself, "invalid_request"),
        ("429 Slow down", "queue of 10.0.0.7:29500", "rate_limited"),
    ] {
        let body = serde_json::json!({"object": "error", "message": text, "code": 400});
        let refusal = json_reply(line, "x-engine: 1\r\n", &body.to_string());
        scripted.engines[0].script(ScriptedReply::whole(refusal));
        let reply = scripted.post(&chat("m", "hi", 1));
        let expected: u16 = line[..3].parse().expect("a status");
        assert_eq!((reply.status, &*reply.error_code()), (expected, code));
        assert!(!reply.text().contains(text), "{}", reply.text());
        assert_eq!(retry_after(&reply).is_some(), expected == 429, "{line}");
        // A client of messages gets it in its own form.
        let message = serde_json::json!({"model": "m", "max_tokens": 1,
            "messages": [{"role": "user", "content": "hi"}]});
        let message = message.to_string();
        let data = scripted.router.data();
        let reply = RawClient::post(&data, "/v1/messages", message.as_bytes());
        assert_eq!(
            (reply.status, reply.json()["type"].as_str()),
            (expected, Some("error"))
        );
        assert!(!reply.text().contains(text), "{}", reply.text());
    }
    let workers = scripted.router.workers();
    let usable = workers.iter().all(|worker| worker["state"] != "ejected");
    assert!(usable, "{workers:?}");
}

#[test]
#[contract("S71")]
fn a_refusal_may_repeat_what_its_client_sent() {
    let text = "no user /home/me at 0x7f3a5c001240 on 10.0.0.7:80";
    let body = serde_json::json!({"object": "error", "message": text, "code": 400}).to_string();
    let refusal = ScriptedReply::whole(json_reply("400 Bad Request", "", &body));
    let scripted = ScriptedFleet::one(refusal, "");
    let reply = scripted.post(&chat("m", text, 1));
    assert_eq!((reply.status, reply.text()), (400, body));
    let reply = scripted.post(&chat("m", "hi", 1));
    assert_eq!(
        (reply.status, &*reply.error_code()),
        (400, "invalid_request")
    );
}
