//! Tells from an event's bytes whether it can carry a fact for accounting.
//!
//! Reading an event as JSON costs more than forwarding it, and engines put `finish_reason` and
//! `usage` into every event of a stream, mostly as `null`.
//!
//! **Invariant**: an event in which [`StreamChunk::read`](crate::StreamChunk::read) finds usage, a
//! finish reason, an error, a response id or the end of a stream is never passed over.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// Searches for the text that stands in every event with a fact.
struct FactFinders {
    /// Ends of the names of members that are a fact unless they are `null`.
    members: [Finder<'static>; 3],
    /// Text that is enough for an event to be read.
    words: [Finder<'static>; 3],
    response: Finder<'static>,
}

static FINDERS: LazyLock<FactFinders> = LazyLock::new(|| FactFinders {
    // `finish_reason` and `stop_reason`.
    members: ["_reason\"", "\"usage\"", "\"error\""].map(Finder::new),
    // A letter of a name or of a type may be written as an escape.
    words: ["\\u", "message_stop", "\"meta_info\""].map(Finder::new),
    response: Finder::new("\"response"),
});

/// What follows `"response` where it is a member, or the type of a last event.
const RESPONSE_ENDINGS: [&[u8]; 4] = [b"\"", b".completed\"", b".incomplete\"", b".failed\""];

/// Returns whether the data of an event can carry a fact: usage, a finish reason, an error, the id
/// of a stored response, or the end of its stream.
///
/// ```
/// let event = br#"{"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}"#;
/// assert!(!dialect::may_have_facts(event));
/// let last = br#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}"#;
/// assert!(dialect::may_have_facts(last));
/// ```
pub fn may_have_facts(data: &[u8]) -> bool {
    let finders = &*FINDERS;
    let has_member = |name: &Finder<'_>| {
        let length = name.needle().len();
        name.find_iter(data)
            .any(|at| is_set_member(&data[at + length..]))
    };
    let ends_response = |at: usize| {
        let rest = &data[at + finders.response.needle().len()..];
        RESPONSE_ENDINGS
            .iter()
            .any(|ending| rest.starts_with(ending))
    };
    finders.members.iter().any(has_member)
        || finders.words.iter().any(|word| word.find(data).is_some())
        || finders.response.find_iter(data).any(ends_response)
}

/// Returns whether the text behind a name makes it a member with another value than `null`.
fn is_set_member(rest: &[u8]) -> bool {
    rest.trim_ascii_start()
        .strip_prefix(b":")
        .is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::StreamChunk;

    /// Whether an event has a fact, as a full read finds it.
    fn has_facts(data: &str) -> bool {
        StreamChunk::read(data.as_bytes()).is_some_and(|chunk| {
            chunk.usage.is_some()
                || chunk.error.is_some()
                || chunk.response_id.is_some()
                || chunk.ends()
        })
    }

    #[test]
    fn an_event_of_mere_text_is_passed_over_in_each_dialect() {
        for data in [
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#,
            r#"{"choices":[{"text":"a","stop_reason": null,"finish_reason" : null}],"usage": null}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#,
            r#"{"type":"response.output_text.delta","delta":"a \n \"usage\": {"}"#,
            "[DONE]",
        ] {
            assert!(!may_have_facts(data.as_bytes()), "{data}");
        }
    }

    #[test]
    fn an_event_with_a_fact_is_read_in_each_dialect() {
        for data in [
            r#"{"choices":[{"delta":{},"finish_reason" : "stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
            r#"{"error":{"code":500}}"#,
            r#"{"text":"a","meta_info":{"prompt_tokens":1,"finish_reason":null}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
            r#"{"type":"message_stop"}"#,
            r#"{"type":"response.failed"}"#,
            r#"{"type":"response.created","response":{"id":"r","usage":null,"error":null}}"#,
            r#"{"choices":[{"finish\u005freason":"stop"}]}"#,
            r#"{"type":"\u006dessage_stop"}"#,
        ] {
            assert!(has_facts(data), "{data}");
            assert!(may_have_facts(data.as_bytes()), "{data}");
        }
    }

    /// Text of which events are made, in any order.
    const PIECES: [&str; 32] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        " : ",
        "\"",
        "\\\"",
        "null",
        "1",
        "\"a\"",
        "\"stop\"",
        "\"usage\"",
        "\"finish_reason\"",
        "\"stop_reason\"",
        "\"error\"",
        "\"choices\"",
        "\"delta\"",
        "\"message\"",
        "\"response\"",
        "\"id\"",
        "\"type\"",
        "\"message_stop\"",
        "\"response.completed\"",
        "\"meta_info\"",
        "\"prompt_tokens\"",
        "\"us\\u0061ge\"",
        "\"object\"",
        "{\"prompt_tokens\":3}",
        "{\"finish_reason\":\"stop\"}",
        "{\"id\":\"r\"}",
    ];

    /// A JSON value of such text, so that most events are valid.
    fn value() -> impl Strategy<Value = String> {
        let scalar = prop::sample::select(
            &[
                "null",
                "1",
                "\"a\"",
                "\"stop\"",
                "\"response\"",
                "\"message_stop\"",
                "\"response.failed\"",
                "{}",
                "[]",
            ][..],
        )
        .prop_map(str::to_owned);
        scalar.prop_recursive(4, 24, 4, |inner| {
            let name = prop::sample::select(
                &[
                    "usage",
                    "finish_reason",
                    "stop_reason",
                    "error",
                    "choices",
                    "delta",
                    "message",
                    "response",
                    "id",
                    "type",
                    "object",
                    "meta_info",
                    "prompt_tokens",
                    "us\\u0061ge",
                ][..],
            );
            let space = prop::sample::select(&["", " ", "\n\t"][..]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3)
                    .prop_map(|values| format!("[{}]", values.join(","))),
                prop::collection::vec((name, space, inner), 0..4).prop_map(|members| {
                    let members: Vec<_> = members
                        .iter()
                        .map(|(name, space, value)| format!("\"{name}\"{space}:{space}{value}"))
                        .collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_event_with_a_fact_is_never_passed_over(
            data in value(),
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..16),
        ) {
            for data in [data, pieces.concat()] {
                prop_assert!(may_have_facts(data.as_bytes()) || !has_facts(&data), "{}", data);
            }
        }
    }
}
