//! Replies that are not stored, and the reasons.

use contract_id::contract;
use dialect::{Dialect, NotCacheable, StreamObject};
use serde_json::{Value, json};

use super::{chat, read, sse};

fn choices(choices: Value) -> Value {
    json!({"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": choices})
}

fn chunk_of(delta: Value) -> Value {
    choices(json!([{"index": 0, "delta": delta, "finish_reason": null}]))
}

fn finish_chunk(why: Value) -> Value {
    choices(json!([{"index": 0, "delta": {}, "finish_reason": why}]))
}

fn good() -> [Value; 2] {
    [
        chunk_of(json!({"role": "assistant", "content": "a"})),
        finish_chunk(json!("stop")),
    ]
}

#[test]
#[contract("CH16", "CK29", "F20", "S47")]
fn a_stream_without_its_end_is_not_stored() {
    let whole = sse(&good());
    assert!(read(Dialect::Chat, &whole).is_ok());
    let mark = whole.find("data: [DONE]").unwrap();
    for end in [0, mark / 2, mark - 1, mark, mark + 8] {
        let cut = read(Dialect::Chat, &whole[..end]).unwrap_err();
        assert!(
            matches!(cut, NotCacheable::NotWhole | NotCacheable::Unreadable),
            "{end}: {cut}"
        );
    }
    assert_eq!(
        chat(&good()[..1]),
        Err(NotCacheable::NotWhole),
        "no choice has a finish reason"
    );
    assert_eq!(
        chat(&[chunk_of(json!({"content": "a"})), finish_chunk(json!(""))]),
        Err(NotCacheable::NotWhole)
    );
    assert_eq!(chat(&[]), Err(NotCacheable::NotWhole), "no chunk at all");
    assert_eq!(chat(&[choices(json!([]))]), Err(NotCacheable::NotWhole));
}

#[test]
#[contract("CH16", "S47")]
fn every_choice_must_be_finished() {
    let both = choices(
        json!([{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]),
    );
    let end = |index: u32| choices(json!([{"index": index, "delta": {}, "finish_reason": "stop"}]));
    assert!(chat(&[both.clone(), end(0), end(1)]).is_ok());
    assert_eq!(chat(&[both.clone(), end(0)]), Err(NotCacheable::NotWhole));
    assert_eq!(chat(&[both, end(1)]), Err(NotCacheable::NotWhole));
    assert_eq!(
        chat(&[end(1)]),
        Err(NotCacheable::NotWhole),
        "the first choice is missing"
    );
}

#[test]
#[contract("F19", "S47")]
fn a_stream_that_continues_after_done_is_not_stored() {
    let whole = sse(&good());
    let again = &whole[..whole.find("\n\n").unwrap() + 2];
    for more in [
        "data: [DONE]\n\n",
        "data: [DONE]",
        again,
        ": bye\n\n",
        ": bye",
        "x",
        "event: end\n\n",
        "data: \n\ndata: {}\n\n",
    ] {
        let stream = format!("{whole}{more}");
        assert_eq!(
            read(Dialect::Chat, &stream),
            Err(NotCacheable::AfterDone),
            "{more:?}"
        );
        let pieces = [whole.as_bytes(), more.as_bytes()];
        assert_eq!(
            StreamObject::read(Dialect::Chat, &pieces),
            Err(NotCacheable::AfterDone),
            "{more:?} in a piece of its own"
        );
    }
    assert!(
        read(Dialect::Chat, &format!("{whole}\r\n")).is_ok(),
        "an empty line is ignored"
    );
}

#[test]
#[contract("F21", "CH16", "S47")]
fn a_stream_with_an_error_is_not_stored() {
    let [first, last] = good();
    let error = json!({"message": "EngineCore died", "type": "InternalServerError", "code": 500});
    let mut beside = first.clone();
    beside["error"] = json!("boom");
    for chunk in [
        json!({"error": error}),
        json!({"object": "error", "message": "died", "code": 500}),
        beside,
        choices(json!([{"index": 0, "delta": {"content": "a"}, "error": error}])),
        chunk_of(json!({"content": "a", "error": error})),
    ] {
        assert_eq!(
            chat(&[first.clone(), chunk.clone(), last.clone()]),
            Err(NotCacheable::ErrorInBand),
            "{chunk}"
        );
        assert_eq!(
            chat(&[first.clone(), last.clone(), chunk.clone()]),
            Err(NotCacheable::ErrorInBand),
            "{chunk}"
        );
    }
    let named = sse(&good()).replacen("data: [DONE]", "event: error\ndata: {}\n\ndata: [DONE]", 1);
    assert_eq!(read(Dialect::Chat, &named), Err(NotCacheable::ErrorInBand));
    let mut fine = first;
    fine["error"] = Value::Null;
    assert!(chat(&[fine, last]).is_ok());
}

#[test]
#[contract("CH15", "S47")]
fn a_choice_that_finished_with_an_error_is_not_stored() {
    let both = |one: &str, other: &str| {
        choices(
            json!([{"index": 0, "delta": {"content": "a"}, "finish_reason": one},
            {"index": 1, "delta": {"content": "a"}, "finish_reason": other}]),
        )
    };
    assert!(chat(&[both("stop", "length")]).is_ok());
    for broken in ["error", "abort", "ERROR", "timeout"] {
        assert_eq!(
            chat(&[both("stop", broken)]),
            Err(NotCacheable::FinishedInError),
            "{broken}"
        );
        assert_eq!(
            chat(&[both(broken, "stop")]),
            Err(NotCacheable::FinishedInError),
            "{broken}"
        );
    }
    assert_eq!(
        chat(&[good()[0].clone(), finish_chunk(json!(7))]),
        Err(NotCacheable::UnknownShape)
    );
}

#[test]
#[contract("S47", "B3")]
fn calls_whose_arguments_are_not_json_are_not_stored() {
    let call = |arguments: &[&str]| {
        let mut all: Vec<_> = arguments
            .iter()
            .map(|piece| {
                chunk_of(json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}))
            })
            .collect();
        all[0]["choices"][0]["delta"]["tool_calls"][0]["id"] = json!("call_1");
        all.push(finish_chunk(json!("tool_calls")));
        chat(&all)
    };
    assert!(call(&["", "{\"a\"", ":1}"]).is_ok());
    for broken in [
        &["{\"a\":"][..],
        &["{}", "{}"],
        &[""],
        &["{'a': 1}"],
        &["{\"a\":1}", "}"],
    ] {
        assert_eq!(call(broken), Err(NotCacheable::ToolArguments), "{broken:?}");
    }
    let bare = chunk_of(json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function"}]}));
    assert_eq!(
        chat(&[bare, finish_chunk(json!("tool_calls"))]),
        Err(NotCacheable::ToolArguments)
    );
    let older = chunk_of(json!({"function_call": {"name": "f", "arguments": "{"}}));
    assert_eq!(
        chat(&[older, finish_chunk(json!("function_call"))]),
        Err(NotCacheable::ToolArguments)
    );
}

#[test]
#[contract("B3")]
fn ambiguous_chunks_are_not_stored() {
    let end = finish_chunk(json!("stop"));
    let two = |one: Value, other: Value| chat(&[chunk_of(one), chunk_of(other), end.clone()]);
    for (one, other) in [
        (json!({"role": "assistant"}), json!({"role": "tool"})),
        (json!({"channel": "final"}), json!({"channel": "final"})),
        (json!({"content": "a"}), json!({"content": ["b"]})),
        (
            json!({"content": [{"type": "text", "text": "a"}]}),
            json!({}),
        ),
        (
            json!({"reasoning_details": [{"text": "a"}]}),
            json!({"reasoning_details": [{"text": "b"}]}),
        ),
        (json!({"own": 1}), json!({"own": 2})),
        (json!({"own": {"a": 1}}), json!({"own": {"b": 1}})),
        (json!({"own": "a"}), json!({"own": 1})),
        (json!({"audio": {"id": "a", "data": "AAAA"}}), json!({})),
        (
            json!({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
            json!({}),
        ),
        (json!({"tool_calls": {"index": 0}}), json!({})),
        (
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
            json!({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "g", "arguments": "{}"}}]}),
        ),
        (
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]}),
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "}"}}]}),
        ),
    ] {
        assert_eq!(
            two(one.clone(), other.clone()),
            Err(NotCacheable::UnknownShape),
            "{one} {other}"
        );
    }
    let first = good()[0].clone();
    for odd in [
        choices(json!([{"delta": {"content": "a"}}])),
        choices(json!([{"index": -1, "delta": {"content": "a"}}])),
        choices(json!([{"index": 0, "message": {"content": "a"}}])),
        choices(json!([{"index": 0, "text": "a"}])),
        choices(json!(["a"])),
        choices(json!({"index": 0})),
        json!({"object": "response.chunk", "choices": []}),
        json!({"usage": 7}),
        finish_chunk(json!("length")),
    ] {
        assert_eq!(
            chat(&[first.clone(), odd.clone(), end.clone()]),
            Err(NotCacheable::UnknownShape),
            "{odd}"
        );
    }
}

#[test]
fn an_ambiguous_stream_is_not_stored() {
    let stream = |chunk: &str| format!("data: {chunk}\n\n{}", sse(&good()));
    for twice in [
        r#"{"choices":[{"index":0,"delta":{"content":"a","content":"b"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"delta":{"content":"b"}}]}"#,
        r#"{"choices":[],"choices":[]}"#,
        r#"{"id":"a","id":"b"}"#,
    ] {
        assert_eq!(
            read(Dialect::Chat, &stream(twice)),
            Err(NotCacheable::UnknownShape),
            "{twice}"
        );
    }
    for unreadable in [
        "{",
        "[]",
        "hello",
        "{\"a\":1}{\"a\":1}",
        "[done]",
        "{\"a\":01}",
    ] {
        assert_eq!(
            read(Dialect::Chat, &stream(unreadable)),
            Err(NotCacheable::Unreadable),
            "{unreadable}"
        );
    }
    let no_utf8 = [&b"data: {\"a\":\"\xff\"}\n\n"[..], b"data: [DONE]\n\n"];
    assert_eq!(
        StreamObject::read(Dialect::Chat, &no_utf8),
        Err(NotCacheable::Unreadable)
    );
    let many: String = (0..300).map(|at| format!("\"m{at}\":1,")).collect();
    let many = format!("{{\"choices\":[{{\"index\":0,\"delta\":{{{many}\"content\":\"a\"}}}}]}}");
    assert_eq!(
        read(Dialect::Chat, &stream(&many)),
        Err(NotCacheable::UnknownShape)
    );
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(dialect::MAX_EVENT_BYTES));
    assert_eq!(
        read(Dialect::Chat, &stream(&long)),
        Err(NotCacheable::Unreadable)
    );
}

#[test]
#[contract("CH27")]
fn streams_of_other_dialects_are_not_stored() {
    use Dialect::{Embeddings, Messages, Rerank, Responses, Score};
    for dialect in [Messages, Responses, Embeddings, Rerank, Score] {
        assert!(StreamObject::new(dialect).is_none(), "{dialect:?}");
        assert_eq!(
            read(dialect, &sse(&good())),
            Err(NotCacheable::OtherDialect)
        );
    }
    let message = "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: message_stop\ndata: {}\n\n";
    assert_eq!(
        read(Dialect::Chat, message),
        Err(NotCacheable::UnknownShape)
    );
    assert_eq!(
        read(Dialect::Completions, &sse(&good())),
        Err(NotCacheable::UnknownShape),
        "chunks of the other dialect"
    );
}

#[test]
fn reasons_have_distinct_names() {
    use NotCacheable::*;
    let all = [
        NotWhole,
        AfterDone,
        ErrorInBand,
        FinishedInError,
        ToolArguments,
        Unreadable,
        UnknownShape,
        OtherDialect,
    ];
    let mut words: Vec<_> = all.iter().map(|why| why.why()).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), all.len());
    assert_eq!(NotCacheable::AfterDone.to_string(), "after_done");
}
