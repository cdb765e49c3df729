//! Several requests on one connection, and HTTP/1.0 clients.

use super::{CHAT, RoutedEngine};
use crate::harness::{RawClient, ScriptedReply, chat, json_reply, stream_reply, streamed};

fn numbered(number: u32) -> Vec<u8> {
    json_reply("200 OK", "", &format!(r#"{{"id":"{number}"}}"#))
}

#[test]
fn requests_on_one_connection_get_their_own_replies_in_order() {
    let pair = RoutedEngine::start();
    let mut client = RawClient::connect(&pair.router.data());
    for number in 0..20 {
        let body = chat("m", &format!("question {number}"), 1).to_string();
        let events = format!("data: {number}\n\n");
        let streams = number % 3 == 0;
        pair.engine.once(ScriptedReply::whole(if streams {
            stream_reply(&[events.as_bytes()])
        } else {
            numbered(number)
        }));
        client.send("POST", CHAT, &[], body.as_bytes());
        let reply = client.reply();
        assert!(reply.clean);
        assert_eq!(
            reply.text(),
            if streams {
                events
            } else {
                format!(r#"{{"id":"{number}"}}"#)
            }
        );
        assert_eq!(pair.engine.next_request().body, body.as_bytes());
    }
}

#[test]
fn pipelined_requests_are_answered_one_after_the_other() {
    let pair = RoutedEngine::start();
    let mut client = RawClient::connect(&pair.router.data());
    let mut sent = Vec::new();
    for number in 0..5 {
        pair.engine.once(ScriptedReply::whole(numbered(number)));
        let body = chat("m", &format!("question {number}"), 1).to_string();
        sent.extend(
            format!(
                "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .bytes(),
        );
    }
    client.send_bytes(&sent);
    for number in 0..5 {
        assert_eq!(client.reply().text(), format!(r#"{{"id":"{number}"}}"#));
    }
}

#[test]
fn an_http_1_0_client_gets_a_plain_reply_and_a_stream_that_ends_with_the_connection() {
    let pair = RoutedEngine::start();
    let body = chat("m", "hi", 1).to_string();
    let send = |body: &str| {
        let mut client = RawClient::connect(&pair.router.data());
        client.send_bytes(
            format!(
                "POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
        let reply = client.reply();
        assert!(client.is_closed());
        reply
    };
    let reply = send(&body);
    assert_eq!(
        (reply.status, reply.text().as_str(), reply.clean),
        (200, r#"{"id":"1"}"#, true)
    );
    let events = b"data: one\n\ndata: [DONE]\n\n";
    pair.engine.once(ScriptedReply::whole(stream_reply(&[
        &events[..9],
        &events[9..],
    ])));
    let reply = send(&streamed(chat("m", "hi", 1)).to_string());
    assert_eq!(
        (reply.status, reply.body.as_slice(), reply.clean),
        (200, events.as_slice(), true)
    );
    assert_eq!(
        reply.header("transfer-encoding"),
        None,
        "HTTP/1.0 knows no chunks"
    );
}

#[test]
fn head_is_answered_like_get_without_the_body() {
    let pair = RoutedEngine::start();
    let mut client = RawClient::connect(&pair.router.data());
    for path in ["/v1/models", "/health", "/livez", "/readyz"] {
        client.send("GET", path, &[], b"");
        let get = client.reply();
        assert_eq!((get.status, get.clean), (200, true), "{path}");
        client.send("HEAD", path, &[], b"");
        let head = client.head();
        assert_eq!(head.status, 200, "{path}");
        let length = head.header("content-length");
        assert!(
            length.is_none() || length == get.header("content-length"),
            "{path}: {length:?}"
        );
    }
    // No body bytes came in between: the connection is still in step.
    client.send("HEAD", "/nowhere", &[], b"");
    assert_eq!(client.head().status, 404);
    client.send("HEAD", CHAT, &[], b"");
    assert_eq!(client.head().status, 405);
    client.send("GET", "/livez", &[], b"");
    assert_eq!(client.reply().status, 200);
}

#[test]
fn a_connection_stays_open_after_an_error_of_the_router() {
    let pair = RoutedEngine::start();
    let mut client = RawClient::connect(&pair.router.data());
    for body in [
        "{",
        r#"{"model":"unknown"}"#,
        r#"{"model":"m","model":"m"}"#,
    ] {
        client.send("POST", CHAT, &[], body.as_bytes());
        assert!(matches!(client.reply().status, 400 | 404));
    }
    client.send("POST", CHAT, &[], chat("m", "hi", 1).to_string().as_bytes());
    assert_eq!(client.reply().text(), r#"{"id":"1"}"#);
}
