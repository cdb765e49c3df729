//! Requests that are refused by their head, and the handling of the bytes that follow it.

use contract_id::contract;

use crate::{
    faults::fleet::{CHAT, ScriptedFleet, fine},
    harness::{Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat},
};

/// A head without its last line.
fn head(fields: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{fields}")
}

fn fields(count: usize) -> String {
    (0..count)
        .map(|number| format!("x-field-{number}: 1\r\n"))
        .collect()
}

#[test]
#[contract("S34")]
fn heads_over_a_limit_are_refused_with_its_own_status() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    let body = chat("m", "hi", 1).to_string();
    let status = |fields: &str| {
        let mut client = RawClient::connect(&data);
        client.send_bytes(
            format!(
                "{}content-length: {}\r\n\r\n{body}",
                head(fields),
                body.len()
            )
            .as_bytes(),
        );
        client.reply().status
    };
    // Host and content-length are fields too.
    assert_eq!(
        (status(&fields(98)), status(&fields(99))),
        (200, 431),
        "100 and 101 fields"
    );
    assert_eq!(
        status(&format!("x-long: {}\r\n", "a".repeat(33 << 10))),
        431
    );
    let long = format!(
        "GET /v1/models?{} HTTP/1.1\r\nhost: a\r\n\r\n",
        "a".repeat(9 << 10)
    );
    let mut client = RawClient::connect(&data);
    client.send_bytes(long.as_bytes());
    assert_eq!(client.reply().status, 414);
    assert_eq!(scripted.requests(), 1);
}

#[test]
#[contract("G15", "S24")]
fn what_follows_a_body_that_no_route_reads_is_answered_or_the_reply_says_that_it_is_not() {
    let router = Program::serve(&["http://127.0.0.1:9".to_owned()], &[]);
    let (inner, after) = (
        "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /health HTTP/1.1\r\nhost: a\r\nx-request-id: after\r\n\r\n",
    );
    let (first, second) = inner.split_at(5);
    let pieces = crate::harness::chunked(&[first.as_bytes(), second.as_bytes()]);
    let bodies = [
        (format!("content-length: {}", inner.len()), inner.to_owned()),
        (
            "transfer-encoding: chunked".to_owned(),
            String::from_utf8(pieces).unwrap(),
        ),
    ];
    for (listener, stays) in [(router.data(), true), (router.admin(), false)] {
        for (framing, body) in &bodies {
            let mut client = RawClient::connect(&listener);
            let request =
                format!("GET /health HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{body}{after}");
            client.send_bytes(request.as_bytes());
            let closes = client.reply().header("connection") == Some("close");
            assert_eq!(!closes, stays, "{framing} {listener}");
            if closes {
                assert!(client.is_closed(), "{framing}");
            } else {
                assert_eq!(
                    client.reply().header("x-request-id"),
                    Some("after"),
                    "{framing}"
                );
            }
        }
    }
}

#[test]
#[contract("S35", "S62")]
fn a_client_that_expects_100_gets_it_only_if_its_body_will_be_read() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let yaml = "server: {max_body_bytes: 1MiB}\n";
    let router = Program::serve_with(yaml, &[engine.url()], &["--api-key", "right"]).ready(1);
    let send_head = |fields: &str, length: usize| {
        let mut client = RawClient::connect(&router.data());
        client.send_bytes(
            head(&format!(
                "{fields}expect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
            ))
            .as_bytes(),
        );
        client
    };
    let key = "authorization: Bearer right\r\n";
    for (mut client, status) in [
        (send_head("", 20), 401),
        (send_head(key, (1 << 20) + 1), 413),
        (
            send_head(&format!("{key}content-encoding: gzip\r\n"), 20),
            415,
        ),
    ] {
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.header("connection")),
            (status, Some("close"))
        );
        assert!(
            client.is_closed(),
            "the following bytes could be the body or a request"
        );
    }
    let body = chat("m", "hi", 1).to_string();
    let mut client = send_head(key, body.len());
    assert_eq!(client.head().status, 100);
    client.send_bytes(body.as_bytes());
    assert_eq!(client.reply().status, 200);
    assert_eq!(engine.requests(), 1);
}

#[test]
#[contract("S21", "S62")]
fn the_body_of_a_refused_request_never_becomes_the_next_request() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let yaml = "server: {max_body_bytes: 1MiB, max_choices: 1}\n";
    let router = Program::serve_with(yaml, &[engine.url()], &["--api-key", "right"]).ready(1);
    let key = "authorization: Bearer right\r\n";
    let inner = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{key}content-length: 2\r\n\r\n{{}}");
    let after = b"GET /livez HTTP/1.1\r\nhost: a\r\nx-request-id: after\r\n\r\n";
    for (fields, padding, status) in [
        (String::new(), 0, 401),
        ("authorization: Bearer wrong\r\n".to_owned(), 0, 401),
        (format!("{key}content-encoding: gzip\r\n"), 0, 415),
        (
            format!("{key}content-encoding: identity\r\ncontent-encoding: gzip\r\n"),
            0,
            415,
        ),
        (format!("{key}x-warmroute-priority: loud\r\n"), 0, 400),
        (key.to_owned(), 0, 400),
        (key.to_owned(), 2 << 20, 413),
        (key.to_owned(), 900 << 10, 400),
    ] {
        let body = [inner.as_bytes(), &vec![b' '; padding]].concat();
        for framing in ["length", "chunked"] {
            let (announced, sent) = match framing {
                "length" => (format!("content-length: {}\r\n", body.len()), body.clone()),
                _ => (
                    "transfer-encoding: chunked\r\n".to_owned(),
                    crate::harness::chunked(&[&body]),
                ),
            };
            let mut client = RawClient::connect(&router.data());
            client.send_bytes(head(&format!("{fields}{announced}\r\n")).as_bytes());
            // The connection may be closed before all of it is sent.
            let _ = client.offer_bytes(&sent) && client.offer_bytes(after);
            let reply = client.reply();
            assert_eq!(reply.status, status, "{fields:?} {framing} {padding}");
            // The next reply on the connection belongs to the next request, or there is none.
            if reply.header("connection") != Some("close") {
                let next = client.reply();
                assert_eq!(
                    (next.status, next.header("x-request-id")),
                    (200, Some("after")),
                    "{fields:?} {framing}"
                );
            } else {
                assert!(client.is_closed(), "{fields:?} {framing}");
            }
        }
    }
    assert_eq!(
        engine.requests(),
        0,
        "nothing of a body was taken for a request"
    );
}

#[test]
#[contract("S26")]
fn an_ambiguous_head_is_refused() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let body = chat("m", "hi", 1).to_string();
    for line in [
        b"x-name : 1".as_slice(),
        b" x-name: 1",
        b": 1",
        b"x-na\0me: 1",
        b"x-na\x80me: 1",
        b"x name: 1",
        b"x-name",
        b"x-name: a\0b",
        b"x-name: a\rb",
    ] {
        let mut client = RawClient::connect(&scripted.router.data());
        let lengths = format!("\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        client.send_bytes(&[head("").as_bytes(), line, lengths.as_bytes()].concat());
        let reply = client.reply();
        assert_eq!(reply.status, 400, "{:?}", String::from_utf8_lossy(line));
        assert!(client.is_closed());
    }
    assert_eq!(scripted.requests(), 0);
}
