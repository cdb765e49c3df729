//! Requests that HTTP/2 forbids, or that HTTP/1.1 would read differently.

use contract_id::contract;

use super::frames::{
    DATA, END_STREAM, FrameClient, GO_AWAY, HEADERS, RST_STREAM, borrowed, chat_head, frame,
};
use crate::{
    faults::fleet::{CHAT, ScriptedFleet, fine},
    harness::{RawClient, ScriptedReply, chat},
};

#[test]
#[contract("S31")]
fn an_invalid_head_ends_its_stream_and_reaches_no_engine() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    let body = chat("m", "hi", 1).to_string();
    let length = body.len().to_string();
    let wrong_length = (body.len() + 1).to_string();
    // Fields that replace a field of the same name or are added; what the router answers with.
    let cases: [(&str, &[(&'static str, &str)]); 9] = [
        ("an uppercase name", &[("X-Upper", "1")]),
        ("a connection field", &[("connection", "keep-alive")]),
        ("chunked framing", &[("transfer-encoding", "chunked")]),
        ("te other than trailers", &[("te", "gzip")]),
        ("another length", &[("content-length", &wrong_length)]),
        ("an unknown pseudo-header", &[(":other", "1")]),
        ("CRLF in the path", &[(":path", "/v1/models\r\nx: y")]),
        ("an empty path", &[(":path", "")]),
        ("CRLF in a value", &[("x-a", "b\r\nc: d")]),
    ];
    for (what, fields) in cases {
        let mut head = chat_head(&data);
        for (name, value) in fields {
            head.retain(|(known, _)| known != name);
            // A pseudo-header stands before the others.
            let at = if name.starts_with(':') { 0 } else { head.len() };
            head.insert(at, (*name, (*value).to_owned()));
        }
        let mut client = FrameClient::connect(&data);
        let stream = client.request(&borrowed(&head), 0);
        client.offer(&frame(DATA, END_STREAM, stream, body.as_bytes()));
        let answer = client.frame_of(&[RST_STREAM, GO_AWAY, HEADERS, DATA]);
        // Where the head alone is valid, the reply may begin before the body is known to be wrong.
        let refused = match &answer {
            None => true,
            Some(frame) if frame.kind == HEADERS => {
                let rest = client.frame_of(&[RST_STREAM, DATA]);
                rest.is_none_or(|frame| {
                    frame.kind == RST_STREAM
                        || String::from_utf8_lossy(&frame.payload).contains("invalid_request")
                })
            }
            Some(frame) => frame.kind != DATA,
        };
        assert!(refused, "{what}: {answer:?}");
    }
    assert_eq!(scripted.requests(), 0);
    let fields = [("content-length", length)];
    let mut head = chat_head(&data);
    head.extend(fields);
    let mut client = FrameClient::connect(&data);
    let stream = client.request(&borrowed(&head), 0);
    client.offer(&frame(DATA, END_STREAM, stream, body.as_bytes()));
    let reply = client.frame_of(&[DATA, RST_STREAM]).unwrap();
    assert_eq!(reply.payload, br#"{"id":"fine"}"#);
}

#[test]
#[contract("S31")]
fn a_host_other_than_the_authority_is_refused() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    let mut client = FrameClient::connect(&data);
    let body = chat("m", "hi", 1).to_string();
    for (host, answer) in [("other", "Host header"), (data.as_str(), "fine")] {
        let mut head = chat_head(&data);
        head.push(("host", host.to_owned()));
        let stream = client.request(&borrowed(&head), 0);
        client.offer(&frame(DATA, END_STREAM, stream, body.as_bytes()));
        let reply = client.frame_of(&[DATA, RST_STREAM]).unwrap();
        let reply = String::from_utf8_lossy(&reply.payload).into_owned();
        assert!(reply.contains(answer), "{host}: {reply}");
    }
    assert_eq!(scripted.requests(), 1);
    let seen = scripted.engines[0].next_request();
    assert!(seen.line().ends_with("HTTP/1.1"), "{}", seen.line());
    assert!(seen.header("host").is_some() && seen.header(":authority").is_none());
}

#[test]
#[contract("S34")]
fn a_head_with_too_many_fields_is_refused() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    let mut client = FrameClient::connect(&data);
    let mut head = chat_head(&data);
    head.extend((0..101).map(|_| ("x-more", "1".to_owned())));
    let stream = client.request(&borrowed(&head), 0);
    client.offer(&frame(DATA, END_STREAM, stream, b"{}"));
    let reply = client.frame_of(&[DATA, RST_STREAM]).unwrap();
    let text = String::from_utf8_lossy(&reply.payload).into_owned();
    assert!(text.contains("head_too_large"), "{text}");
    let whole = RawClient::post(&data, CHAT, chat("m", "hi", 1).to_string().as_bytes());
    assert_eq!(whole.status, 200);
}
