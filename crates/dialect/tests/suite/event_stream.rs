//! Splitting of event streams, and the values read from events.

use contract_id::contract;
use dialect::{
    InBandError, MAX_EVENT_BYTES, SseEvent, SseSplitter, StreamChunk, Usage, finish_reason,
    in_band_error, is_done, usage_from_body, usage_from_chunk,
};
use proptest::prelude::*;

/// An event for comparison: its name and its data.
type OwnedEvent = (Option<Vec<u8>>, Vec<u8>);

/// A splitter's result for `chunks`: owned events, and whether the stream ends after an event.
fn split<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<OwnedEvent>, bool) {
    let mut events = Vec::new();
    let mut splitter = SseSplitter::new();
    for chunk in chunks {
        let before = events.len();
        let pushed = splitter.push(chunk, |event| events.push(owned(event)));
        assert!(pushed.complete <= chunk.len());
        assert_eq!(pushed.events, events.len() - before);
        assert_eq!(
            splitter.at_boundary(),
            pushed.complete == chunk.len() && (pushed.complete > 0 || splitter.at_boundary())
        );
    }
    (events, splitter.at_boundary())
}

fn owned(event: SseEvent<'_>) -> OwnedEvent {
    match event {
        SseEvent::Data { name, data } => (name.map(|name| name.into_owned()), data.into_owned()),
        SseEvent::Oversized => (None, b"<oversized>".to_vec()),
    }
}

fn data(stream: &[u8]) -> Vec<String> {
    split([stream])
        .0
        .into_iter()
        .map(|(_, data)| String::from_utf8_lossy(&data).into_owned())
        .collect()
}

#[test]
fn line_ends_comments_and_byte_order_marks_are_handled() {
    assert_eq!(data(b"data: a\n\ndata: b\n\n"), ["a", "b"]);
    assert_eq!(data(b"data: a\r\n\r\ndata: b\r\n\r\n"), ["a", "b"]);
    assert_eq!(data(b"data: a\r\rdata: b\r\r"), ["a", "b"]);
    assert_eq!(data(b"data: a\n\r\ndata: b\r\n\n"), ["a", "b"]);
    assert_eq!(data(b"\xEF\xBB\xBFdata: a\n\n"), ["a"]);
    assert_eq!(
        data(b": ping\n\n:\n\nid: 7\nretry: 10\n\ndata:a\n\n"),
        ["a"]
    );
    assert_eq!(data(b"data: one\ndata:  two\ndata\n\n"), ["one\n two\n"]);
    assert_eq!(data(b"\n\n\ndata:\n\n"), [""]);
    assert_eq!(data(b"datax: 1\n Data: 2\n\n"), [""; 0]);
}

#[test]
fn an_event_keeps_its_name() {
    let (events, _) = split([&b"event: error\ndata: {}\n\ndata: x\n\n"[..]]);
    assert_eq!(
        events,
        [
            (Some(b"error".to_vec()), b"{}".to_vec()),
            (None, b"x".to_vec())
        ]
    );
}

#[test]
fn the_complete_part_ends_before_a_torn_event() {
    let mut splitter = SseSplitter::new();
    let pushed = splitter.push(b"data: a\r\n\r\n: c\n\ndata: b", |_| {});
    assert_eq!((pushed.complete, pushed.events), (16, 1));
    assert!(!splitter.at_boundary());
    let pushed = splitter.push(b"\n\n", |_| {});
    assert_eq!((pushed.complete, pushed.events), (2, 1));
    assert!(splitter.at_boundary());
}

#[test]
fn an_event_is_complete_at_its_return_and_the_line_feed_after_it_is_not_torn() {
    let mut splitter = SseSplitter::new();
    assert_eq!(splitter.push(b"data: a\r\n\r", |_| {}).complete, 10);
    assert!(splitter.at_boundary());
    assert_eq!(splitter.push(b"\ndata: b\r\n\r\n", |_| {}).complete, 12);
    assert!(splitter.at_boundary());
}

#[test]
fn an_oversized_line_is_dropped_and_the_next_event_is_read() {
    let mut events = Vec::new();
    let mut splitter = SseSplitter::new();
    let long = vec![b'x'; 300_000];
    splitter.push(b"data: ", |_| {});
    for _ in 0..17 {
        assert_eq!(
            splitter
                .push(&long, |event| events.push(owned(event)))
                .complete,
            0
        );
    }
    assert!(splitter.is_oversized() && events.is_empty());
    splitter.push(b"\n\ndata: next\n\n", |event| events.push(owned(event)));
    assert!(!splitter.is_oversized());
    assert_eq!(
        events,
        [(None, b"<oversized>".to_vec()), (None, b"next".to_vec())]
    );
}

#[test]
fn the_size_limit_does_not_depend_on_the_split() {
    for over in [0, 1] {
        let mut stream = b"data: ".to_vec();
        stream.resize(MAX_EVENT_BYTES - 2 + over, b'x');
        stream.extend_from_slice(b"\n\n");
        let (whole, _) = split([&stream[..]]);
        assert_eq!(whole[0].1 == b"<oversized>", over == 1);
        assert_eq!(split(stream.chunks(65_537)).0, whole);
    }
}

#[test]
fn the_last_event_is_delivered_without_a_trailing_empty_line() {
    let mut events = Vec::new();
    let mut splitter = SseSplitter::new();
    splitter.push(b"data: a\n\ndata: [DONE]", |event| {
        events.push(owned(event))
    });
    assert!(splitter.finish(|event| events.push(owned(event))));
    assert_eq!(events.last().unwrap().1, b"[DONE]");
    assert!(!splitter.finish(|_| panic!("handed over twice")));
}

#[test]
fn usage_is_read_in_the_shapes_that_engines_send() {
    let null = br#"{"id":"c","choices":[],"usage":{"prompt_tokens":101,"total_tokens":105,"completion_tokens":4,"prompt_tokens_details":null}}"#;
    assert_eq!(
        usage_from_chunk(null),
        Some(Usage {
            prompt_tokens: 101,
            completion_tokens: 4,
            cached_tokens: None
        })
    );
    let cached = br#"{"usage":{"prompt_tokens":96,"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":64}}}"#;
    assert_eq!(
        usage_from_body(cached),
        Some(Usage {
            prompt_tokens: 96,
            completion_tokens: 0,
            cached_tokens: Some(64)
        })
    );
    for none in [
        &br#"{"usage":null}"#[..],
        br#"{"choices":[]}"#,
        br#"{"usage":{"prompt_tokens":-1}}"#,
        b"[DONE]",
        b"",
        b"\xff",
        b"{\"usage\":{\"prompt_tokens\":1}",
    ] {
        assert_eq!(usage_from_chunk(none), None);
    }
}

#[test]
fn the_finish_reason_is_found() {
    assert_eq!(
        finish_reason(br#"{"choices":[{"delta":{},"finish_reason":null}]}"#),
        None
    );
    let chunk = br#"{"choices":[{"finish_reason":null},{"index":1,"finish_reason":"length"}]}"#;
    assert_eq!(finish_reason(chunk).as_deref(), Some("length"));
}

#[test]
fn a_role_announcement_is_not_output() {
    let output = |choice: &str| {
        StreamChunk::read(format!(r#"{{"choices":[{choice}]}}"#).as_bytes())
            .unwrap()
            .has_output
    };
    assert!(!output(r#"{"delta":{"role":"assistant","content":""}}"#));
    assert!(!output(r#"{"delta":{}}"#) && !output(r#"{"text":""}"#) && !output(""));
    assert!(output(r#"{"delta":{"content":"a"}}"#));
    assert!(output(
        r#"{"delta":{"content":null,"reasoning_content":"hm"}}"#
    ));
    assert!(output(r#"{"delta":{"tool_calls":[{"index":0}]}}"#));
    assert!(
        output(r#"{"text":" "}"#) && output(r#"{"message":{"role":"assistant","content":"x"}}"#)
    );
}

#[test]
fn an_error_in_a_valid_stream_is_detected() {
    let error =
        br#"{"error": {"message": "EngineCore died", "type": "InternalServerError", "param": null, "code": 500}}"#;
    assert_eq!(
        in_band_error(error),
        Some(InBandError {
            status: Some(500),
            kind: Some("InternalServerError".into())
        })
    );
    assert_eq!(
        in_band_error(br#"{"error":"boom"}"#),
        Some(InBandError::default())
    );
    assert_eq!(in_band_error(br#"{"error":null,"choices":[]}"#), None);
    assert_eq!(
        in_band_error(br#"{"choices":[{"text":"{\"error\":1}"}]}"#),
        None
    );
}

#[test]
fn only_the_exact_done_marker_ends_a_stream() {
    assert!(is_done(b"[DONE]") && is_done(b" [DONE] "));
    assert!(!is_done(b"[done]") && !is_done(b"[DONE") && !is_done(b"{\"x\":\"[DONE]\"}"));
}

/// Valid and invalid streams of significant pieces.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            &b"data: "[..],
            b"data:",
            b"event: e",
            b": c",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"\r\n\r\n",
            b"x",
            b"\xEF\xBB\xBF",
            b"[DONE]",
            b"\0",
            b"\xff",
            b"{\"a\":1}",
        ])
        .prop_map(<[u8]>::to_vec),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn events_do_not_depend_on_the_split(stream in stream(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let whole = split([&stream[..]]);
        prop_assert_eq!(split(cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]])), whole.clone());
        prop_assert_eq!(split(stream.chunks(1)), whole);
    }

    #[test]
    fn complete_and_torn_bytes_together_are_the_stream(stream in stream(), step in 1_usize..9) {
        let mut splitter = SseSplitter::new();
        let (mut sent, mut pending) = (Vec::new(), Vec::new());
        for chunk in stream.chunks(step) {
            let complete = splitter.push(chunk, |_| {}).complete;
            if complete > 0 {
                sent.append(&mut pending);
            }
            sent.extend_from_slice(&chunk[..complete]);
            pending.extend_from_slice(&chunk[complete..]);
            prop_assert_eq!(pending.is_empty(), splitter.at_boundary());
            prop_assert!(sent.is_empty() || sent.ends_with(b"\n") || sent.ends_with(b"\r"));
        }
        sent.append(&mut pending);
        prop_assert_eq!(sent, stream);
    }

    #[test]
    fn no_data_panics(data in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = StreamChunk::read(&data);
        let _ = is_done(&data);
    }
}

#[test]
#[contract("CK47")]
fn a_stream_without_a_line_end_takes_no_more_memory_than_the_largest_event() {
    let piece = vec![b'x'; 1 << 16];
    let taken = allocation_counter::measure(|| {
        let mut splitter = SseSplitter::new();
        for _ in 0..1024 {
            splitter.push(&piece, |_| panic!("no event is complete"));
        }
        assert!(splitter.is_oversized());
    });
    // A buffer that grows by doubling is copied once.
    assert!(
        taken.bytes_max <= 2 << 20,
        "64 MiB without a line end took {} bytes",
        taken.bytes_max
    );
}
