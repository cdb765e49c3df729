//! Generates engine replies: JSON, other content, or an event stream, well formed or not.

use proptest::prelude::*;

/// A reply that is no event stream.
pub(crate) fn plain_body() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    let kind = prop_oneof![
        Just("application/json"),
        Just("application/json; charset=utf-8"),
        Just("text/plain"),
        Just("application/octet-stream"),
        Just("text/event-streams-not-quite/x"),
        Just(""),
    ];
    let json =
        br#"{"id":"1","usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    let body = prop_oneof![
        Just(json.to_vec()),
        prop::collection::vec(any::<u8>(), 0..200),
        prop::collection::vec(any::<u8>(), 20_000..40_000),
        Just(b"data: not an event stream\n\n".to_vec()),
    ];
    (kind, body).prop_filter("a stream by its type", |(kind, _)| {
        !kind.starts_with("text/event-stream")
    })
}

/// The bytes of an event stream.
pub(crate) fn events() -> impl Strategy<Value = Vec<u8>> {
    let event = prop_oneof![
        4 => token(),
        1 => Just(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n".to_vec()),
        1 => Just(b": ping\n\n".to_vec()),
        1 => Just(b":\r\n\r\n".to_vec()),
        1 => Just(b"event: token\r\nid: 7\r\nretry: 10\r\ndata: one\r\ndata: two\r\n\r\n".to_vec()),
        1 => Just(b"data: lone return\r\r".to_vec()),
        1 => Just(b"data: \xff\xfe\xc3( not text\n\n".to_vec()),
        1 => Just(b"data: nul \0 and bom \xef\xbb\xbf\n\n".to_vec()),
        1 => Just(b"data: [DONE]\n\n".to_vec()),
        1 => Just(b"data:[DONE]\r\n\r\n".to_vec()),
        1 => Just(b"\n\r\n\n\r\r".to_vec()),
        1 => Just(b"no colon at all\n\n".to_vec()),
        1 => Just(b"data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..60),
        1 => Just([b"data: ".as_slice(), &[b'x'; 9000], b"\n\n"].concat()),
    ];
    let start = prop_oneof![4 => Just(b"".as_slice()), 1 => Just(b"\xef\xbb\xbf".as_slice())];
    let end = prop_oneof![
        4 => Just(b"data: [DONE]\n\n".as_slice()),
        1 => Just(b"data: [DONE]\n\ndata: [DONE]\n\n".as_slice()),
        1 => Just(b"data: [DONE]\n\ntrailing bytes".as_slice()),
        1 => Just(b"data: torn at the e".as_slice()),
        1 => Just(b"\r".as_slice()),
        1 => Just(b"".as_slice()),
    ];
    (start, prop::collection::vec(event, 1..12), end)
        .prop_map(|(start, events, end)| [start, &events.concat(), end].concat())
}

fn token() -> impl Strategy<Value = Vec<u8>> {
    let ends = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    ("\\PC{1,6}", ends).prop_map(|(text, end)| {
        format!(r#"data: {{"choices":[{{"index":0,"delta":{{"content":{text:?}}}}}]}}{end}{end}"#)
            .into_bytes()
    })
}
