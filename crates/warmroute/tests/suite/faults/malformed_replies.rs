//! Replies that violate HTTP or contradict themselves.

use contract_id::contract;

use super::fleet::{ScriptedFleet, SimulatedRouter, attempts, fine};
use crate::harness::{RawClient, RouterQueries as _, ScriptedReply, chat, chunk, json_reply};

/// Sends `bytes` as the engine's reply and a good reply after it; returns what the client gets.
fn first_of(bytes: &[u8]) -> crate::harness::RawReply {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "retry: {max_attempts: 1}");
    scripted.engines[0].once(ScriptedReply::Cut(bytes.to_vec()));
    let mut client = RawClient::connect(&scripted.router.data());
    let body = chat("m", "hi", 1).to_string();
    client.send("POST", super::fleet::CHAT, &[], body.as_bytes());
    let reply = client.reply();
    // The next request of the same client gets its own reply in any case. The engine may be closing
    // the connection that it kept, and only one attempt is allowed; then the request after that one
    // succeeds.
    let mut next = || {
        client.send("POST", super::fleet::CHAT, &[], body.as_bytes());
        client.reply()
    };
    let mut second = next();
    if second.status == 502 && second.error_code() == "upstream_reset" {
        second = next();
    }
    assert_eq!(second.text(), r#"{"id":"fine"}"#);
    scripted.router.wait_until_idle();
    reply
}

fn is_502(bytes: &[u8]) {
    let reply = first_of(bytes);
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
    assert_eq!(reply.status, 502, "{shown:?} became {}", reply.text());
    assert!(
        matches!(
            reply.error_code().as_str(),
            "upstream_protocol" | "upstream_reset"
        ),
        "{shown:?}"
    );
}

#[test]
#[contract("F9", "F10")]
fn a_plain_reply_that_ends_early_gives_502_and_no_part_of_it() {
    is_502(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 40\r\n\r\n{\"id\":\"part");
    is_502(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{\"id\r\n");
    is_502(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n40\r\n{\"id");
    let fleet = SimulatedRouter::start(2, &["--no-kv-events", "--speed", "20"], "");
    fleet.fault("short_body");
    let reply = fleet.post(&chat("sim", "hi", 4));
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (502, "upstream_protocol")
    );
    assert_eq!(
        attempts(&fleet.router.receipt_of(&reply)),
        [(None, "protocol")]
    );
}

#[test]
fn a_long_plain_reply_that_ends_early_ends_uncleanly() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let announced = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
        4 << 20
    );
    let part = vec![b'x'; 3 << 20];
    for head in [
        announced,
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_owned(),
    ] {
        let body = if head.contains("chunked") {
            chunk(&part)
        } else {
            part.clone()
        };
        scripted.engines[0].once(ScriptedReply::Cut([head.as_bytes(), &body].concat()));
        let reply = scripted.post(&chat("m", "hi", 1));
        assert_eq!((reply.status, reply.clean), (200, false));
        assert!(part.starts_with(&reply.body));
    }
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F26", "F27")]
fn a_head_that_violates_http_gives_502_and_nothing_of_it_is_reflected() {
    is_502(b"not http at all\r\n\r\n");
    is_502(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x");
    is_502(b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n{}");
    is_502(b"HTTP/1.1 200 OK\r\nbad name: 1\r\ncontent-length: 2\r\n\r\n{}");
    is_502(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, identity\r\ncontent-length: 2\r\n\r\n{}",
    );
    let many: String = (0..300)
        .map(|number| format!("x-{number}: 1\r\n"))
        .collect();
    is_502(format!("HTTP/1.1 200 OK\r\n{many}content-length: 2\r\n\r\n{{}}").as_bytes());
    is_502(
        format!(
            "HTTP/1.1 200 OK\r\nx-long: {}\r\ncontent-length: 2\r\n\r\n{{}}",
            "a".repeat(1 << 20)
        )
        .as_bytes(),
    );
}

#[test]
#[contract("F24")]
fn interim_replies_are_not_taken_for_the_reply() {
    let interim =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".to_vec();
    let reply = first_of(&[interim, json_reply("200 OK", "", r#"{"id":"final"}"#)].concat());
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, r#"{"id":"final"}"#)
    );
    assert_eq!(reply.header("link"), None);
}

#[test]
#[contract("F25")]
fn a_switch_of_protocols_gives_502() {
    is_502(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nraw bytes");
    is_502(b"HTTP/1.1 302 Found\r\nlocation: http://10.0.0.7/\r\ncontent-length: 0\r\n\r\n");
}

#[test]
#[contract("F11")]
fn bytes_after_the_end_of_a_reply_reach_no_client() {
    let smuggled = json_reply("200 OK", "", r#"{"id":"smuggled"}"#);
    let reply = first_of(&[json_reply("200 OK", "", r#"{"id":"1"}"#), smuggled].concat());
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, r#"{"id":"1"}"#)
    );
    // The same on a connection that stays open.
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    scripted.engines[0].once(ScriptedReply::whole(
        [
            json_reply("200 OK", "", "{}"),
            json_reply("200 OK", "", "[]"),
        ]
        .concat(),
    ));
    assert_eq!(scripted.post(&chat("m", "hi", 1)).text(), "{}");
    for _ in 0..3 {
        assert_eq!(
            scripted.post(&chat("m", "hi", 1)).text(),
            r#"{"id":"fine"}"#
        );
    }
}

#[test]
fn a_reply_without_a_body_has_none() {
    let reply = first_of(b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\nx-a: 1\r\n\r\n");
    assert_eq!(
        (reply.status, reply.body.len(), reply.header("x-a")),
        (204, 0, Some("1"))
    );
    let reply = first_of(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
    );
    assert_eq!(
        (reply.status, reply.body.len(), reply.clean),
        (200, 0, true)
    );
}
