//! Splitting of event streams, and the values read from events.

use contract_id::contract;
use dialect::{
    InBandError, MAX_EVENT_BYTES, ReplyPart, SseEvent, SseSplitter, StreamChunk, Usage,
    estimated_tokens, finish_reason, in_band_error, is_done, usage_from_body, usage_from_chunk,
    usage_from_tail,
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

/// A reply of SGLang's own API with these members, and counts of its prompt and its output.
fn native(members: &str, prompt: u32, output: u32) -> String {
    format!(
        r#"{{"text":"a",{members}"meta_info":{{"prompt_tokens":{prompt},"completion_tokens":{output},"cached_tokens":1}}}}"#
    )
}

#[test]
#[contract("S72")]
fn the_usage_of_a_list_of_replies_is_that_of_all() {
    let list = |replies: &[String]| format!(" [{}]\n", replies.join(", "));
    let (one, other) = (native("", 5, 7), native("", 6, 9));
    let body = list(&[one.clone(), other.clone()]);
    let chunk = StreamChunk::read(body.as_bytes()).unwrap();
    assert_eq!(chunk.part, Some(ReplyPart::List));
    assert_eq!(
        chunk.usage,
        Some(Usage {
            prompt_tokens: 11,
            completion_tokens: 16,
            cached_tokens: Some(2)
        })
    );
    assert!(chunk.has_output);
    let uncounted = r#"{"text":"a","meta_info":{}}"#.to_owned();
    let body = list(&[one.clone(), uncounted]);
    assert_eq!(
        usage_from_body(body.as_bytes()),
        None,
        "a part is not passed off as the whole"
    );
    let most = native("", u32::MAX, u32::MAX);
    let body = list(&[most, one.clone()]);
    let usage = usage_from_body(body.as_bytes()).unwrap();
    assert_eq!(
        (usage.prompt_tokens, usage.completion_tokens),
        (u32::MAX, u32::MAX)
    );
    for other_list in [
        "[]".to_owned(),
        "[[]]".to_owned(),
        r#"[{"index":0,"score":0.5}]"#.to_owned(),
        r#"[{"usage":{"prompt_tokens":1}}]"#.to_owned(),
        format!("[{one},1]"),
        format!("[{one}"),
        format!("[{one}]]"),
    ] {
        assert_eq!(
            StreamChunk::read(other_list.as_bytes()),
            None,
            "{other_list}"
        );
    }
}

#[test]
#[contract("S72")]
fn an_event_of_several_prompts_names_the_one_that_it_counts() {
    let part = |event: &str| StreamChunk::read(event.as_bytes()).unwrap().part;
    assert_eq!(part(&native("", 1, 2)), None);
    assert_eq!(
        part(&native(r#""index":3,"#, 1, 2)),
        Some(ReplyPart::Numbered(3))
    );
    let block = r#"{"type":"content_block_delta","index":3,"delta":{"text":"a"}}"#;
    assert_eq!(part(block), None);
}

#[test]
#[contract("S72")]
fn the_usage_at_the_end_of_a_body_is_read_where_it_is_the_bodys_own() {
    let counts = r#""usage":{"prompt_tokens":9,"completion_tokens":4}"#;
    for tail in [
        format!("0.5],{counts}}}"),
        format!("\"a\"}}],{counts},\"prompt_logprobs\":null,\"model\":\"m\"}} \n"),
        format!("\"}}],{counts},\"user\":\"usage\"}}"),
        format!("\"}}],{counts},\"user\":{{\"usage\":{{\"prompt_tokens\":1}}}}}}"),
        // The text of a reply, in which the marks are escaped.
        format!(r#"\"usage\":{{\"prompt_tokens\":1}}"}}],{counts}}}"#),
    ] {
        let usage = usage_from_tail(tail.as_bytes());
        let usage = usage.unwrap_or_else(|| panic!("{tail}"));
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (9, 4),
            "{tail}"
        );
    }
    for tail in [
        format!("}}],\"about\":{{{counts}}}}}"),
        format!("{{{counts}}}]"),
        format!("}}],{counts},\"choices\":[{{}}"),
        format!("}}],{counts}}}}}"),
        "}],\"usage\":null}".to_owned(),
        "}],\"usage\":{}}".to_owned(),
        "}],\"usage".to_owned(),
        String::new(),
    ] {
        assert_eq!(usage_from_tail(tail.as_bytes()), None, "{tail}");
    }
}

#[test]
#[contract("S72")]
fn an_event_without_counts_has_a_token_for_each_four_bytes_of_its_text() {
    for (event, tokens) in [
        (
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            1,
        ),
        (r#"{"choices":[{"delta":{"content":"a"}}]}"#, 1),
        (r#"{"choices":[{"delta":{"content":"1234567"}}]}"#, 1),
        (r#"{"choices":[{"delta":{"content":"12345678"}}]}"#, 2),
        (
            r#"{"choices":[{"text":"12345678"},{"text":"12345678"}]}"#,
            4,
        ),
        // Characters of several bytes, and escapes, which count as what they stand for.
        (r#"{"choices":[{"delta":{"content":"日本語日本語"}}]}"#, 4),
        (
            r#"{"choices":[{"delta":{"content":"\n\n\n\n\n\n\n\n"}}]}"#,
            2,
        ),
        (
            r#"{"choices":[{"delta":{"reasoning_content":"12345678"}}]}"#,
            2,
        ),
        (
            r#"{"choices":[{"delta":{"reasoning":"12345678","reasoning_content":"12345678"}}]}"#,
            2,
        ),
        (
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_0123456789","type":"function","function":{"name":"find","arguments":"{\"a\":12345}"}}]}}]}"#,
            3,
        ),
        (r#"{"choices":[{"index":0,"token_ids":[7,8,9]}]}"#, 3),
        (
            r#"{"choices":[{"text":"123456789012","token_ids":[7]}]}"#,
            1,
        ),
        (
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"12345678"}}"#,
            2,
        ),
        (
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn_1234567890"}}"#,
            1,
        ),
        (
            r#"{"type":"response.output_text.delta","delta":"12345678"}"#,
            2,
        ),
        // It repeats the text of others.
        (
            r#"{"type":"response.output_text.done","text":"123456789012"}"#,
            1,
        ),
        ("[DONE]", 1),
        ("", 1),
        ("\"12345678\"", 1),
    ] {
        assert_eq!(estimated_tokens(event.as_bytes()), tokens, "{event}");
    }
    assert_eq!(estimated_tokens(b"\xff\xff\xff\xff\xff\xff\xff\xff"), 1);
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
