//! Engine replies reach the client byte for byte.

use contract_id::contract;
use proptest::{prelude::*, test_runner::TestRunner};

use super::{
    CHAT, RoutedEngine, any_reply,
    wire_form::{self, Cuts},
};
use crate::harness::{Framing, RawClient, ScriptedReply, chat, json_reply, streamed};

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 60,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    }
}

/// An engine's reply with this body in these pieces.
fn scripted(kind: &str, body: &[u8], framing: Framing, cuts: &Cuts) -> ScriptedReply {
    let kind = if kind.is_empty() {
        String::new()
    } else {
        format!("Content-Type: {kind}\r\n")
    };
    let (framed, writes) = cuts.framed(framing, body);
    let head = format!(
        "HTTP/1.1 200 OK\r\n{kind}x-engine: {}\r\n{framed}\r\n",
        body.len()
    )
    .into_bytes();
    let writes: Vec<_> = std::iter::once(head).chain(writes).collect();
    match framing {
        Framing::Close => ScriptedReply::CutAfter(writes, cuts.pause),
        _ => ScriptedReply::Pieces(writes, cuts.pause),
    }
}

#[test]
#[contract("I12")]
fn any_plain_reply_reaches_the_client_byte_for_byte() {
    let pair = RoutedEngine::start();
    let body = chat("m", "hi", 1).to_string();
    let cases = (
        any_reply::plain_body(),
        wire_form::reply_framing(),
        wire_form::cuts(),
    );
    let result = TestRunner::new(config()).run(&cases, |((kind, bytes), framing, cuts)| {
        let mut client = pair.client();
        pair.engine.once(scripted(kind, &bytes, framing, &cuts));
        client.send("POST", CHAT, &[], body.as_bytes());
        let reply = client.reply();
        prop_assert_eq!((reply.status, reply.clean), (200, true));
        prop_assert_eq!(reply.header("content-type").unwrap_or_default(), kind);
        prop_assert_eq!(reply.header("x-engine"), Some(&*bytes.len().to_string()));
        prop_assert_eq!(reply.body, bytes);
        pair.reuse(client);
        Ok(())
    });
    result.unwrap();
}

#[test]
#[contract("I12", "F18", "F19")]
fn any_event_stream_reaches_the_client_byte_for_byte_and_ends_cleanly() {
    let pair = RoutedEngine::start();
    let body = streamed(chat("m", "hi", 1)).to_string();
    let cases = (
        any_reply::events(),
        wire_form::reply_framing(),
        wire_form::cuts(),
    );
    let result = TestRunner::new(config()).run(&cases, |(bytes, framing, cuts)| {
        let mut client = pair.client();
        pair.engine
            .once(scripted("text/event-stream", &bytes, framing, &cuts));
        client.send("POST", CHAT, &[], body.as_bytes());
        let reply = client.reply();
        prop_assert_eq!((reply.status, reply.clean), (200, true));
        prop_assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        prop_assert_eq!(
            String::from_utf8_lossy(&reply.body),
            String::from_utf8_lossy(&bytes)
        );
        prop_assert_eq!(reply.body, bytes);
        pair.reuse(client);
        Ok(())
    });
    result.unwrap();
}

#[test]
#[contract("F17")]
fn an_event_of_five_mebibytes_passes_unchanged() {
    let pair = RoutedEngine::start();
    let event = [
        b"data: ".as_slice(),
        &vec![b'x'; 5 << 20],
        b"\n\ndata: [DONE]\n\n",
    ]
    .concat();
    let cuts = Cuts::none();
    pair.engine.once(scripted(
        "text/event-stream",
        &event,
        Framing::Chunked,
        &cuts,
    ));
    let reply = RawClient::post(
        &pair.router.data(),
        CHAT,
        streamed(chat("m", "hi", 1)).to_string().as_bytes(),
    );
    assert!(
        reply.clean && reply.body == event,
        "{} bytes came, clean: {}",
        reply.body.len(),
        reply.clean
    );
}

#[test]
fn a_plain_reply_of_many_mebibytes_passes_unchanged() {
    let pair = RoutedEngine::start();
    let bytes: Vec<u8> = (0..24u32 << 20).map(|at| (at % 251) as u8).collect();
    for framing in [Framing::Length, Framing::Chunked, Framing::Close] {
        pair.engine
            .once(scripted("application/json", &bytes, framing, &Cuts::none()));
        let reply = RawClient::post(
            &pair.router.data(),
            CHAT,
            chat("m", "hi", 1).to_string().as_bytes(),
        );
        assert!(
            reply.clean && reply.body == bytes,
            "{framing:?}: {} bytes, clean: {}",
            reply.body.len(),
            reply.clean
        );
        // A known length is announced.
        let length = reply.header("content-length").map(str::to_owned);
        assert_eq!(
            length,
            (framing == Framing::Length).then(|| bytes.len().to_string())
        );
    }
}

#[test]
fn complete_events_are_forwarded_before_the_next_one_arrives() {
    let pair = RoutedEngine::start();
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    // No further event follows, so a received event did not wait for more.
    let sent = [
        head.as_slice(),
        &crate::harness::chunk(b"data: 1\n\ndata: 2\n\ndata: to"),
    ]
    .concat();
    pair.engine.once(ScriptedReply::Stall(sent));
    let mut client = RawClient::chat(&pair.router.data(), &streamed(chat("m", "hi", 9)));
    let reply = client.read_until("data: 2\n\n");
    assert_eq!(reply.text(), "data: 1\n\ndata: 2\n\n");
    // The router holds the start of an event only briefly.
    assert_eq!(client.chunk().unwrap(), b"data: to");
}

#[test]
#[contract("F27")]
fn a_reply_with_both_a_length_and_chunks_cannot_shift_the_next_reply() {
    let pair = RoutedEngine::start();
    let body = chat("m", "hi", 1).to_string();
    let lying = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 400\r\n\
                  transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    pair.engine.once(ScriptedReply::whole(lying));
    let mut client = RawClient::connect(&pair.router.data());
    client.send("POST", CHAT, &[], body.as_bytes());
    let first = client.reply();
    assert_eq!(
        (first.status, first.error_code().as_str()),
        (502, "upstream_protocol")
    );
    client.send("POST", CHAT, &[], body.as_bytes());
    assert_eq!(client.reply().body, br#"{"id":"1"}"#);
}

#[test]
#[contract("F16")]
fn an_engines_own_4xx_passes_unchanged() {
    let pair = RoutedEngine::start();
    for status in [
        "400 Bad Request",
        "404 Not Found",
        "422 Unprocessable Entity",
        "418 I'm a teapot",
    ] {
        let text = r#"{"object":"error","message":"engine's own words","code":400}"#;
        pair.engine.once(ScriptedReply::whole(json_reply(
            status,
            "x-engine: 1\r\n",
            text,
        )));
        let reply = RawClient::post(
            &pair.router.data(),
            CHAT,
            chat("m", "hi", 1).to_string().as_bytes(),
        );
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (status[..3].parse().unwrap(), text)
        );
        assert_eq!(reply.header("x-engine"), Some("1"));
    }
    assert_eq!(pair.engine.requests(), 4, "none of them is tried again");
}

#[test]
#[contract("S62")]
fn an_encoded_reply_passes_undecoded() {
    let pair = RoutedEngine::start();
    // A gzip head that expands to nothing good: the router never looks inside.
    let bomb = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0][..], &[0xff; 4096]].concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        bomb.len()
    );
    let mut client = pair.client();
    pair.engine
        .once(ScriptedReply::whole([head.as_bytes(), &bomb].concat()));
    client.send("POST", CHAT, &[], chat("m", "hi", 1).to_string().as_bytes());
    let reply = client.reply();
    assert_eq!((reply.status, reply.clean), (200, true));
    assert_eq!(reply.header("content-encoding"), Some("gzip"));
    assert_eq!(reply.body, bomb);
}
