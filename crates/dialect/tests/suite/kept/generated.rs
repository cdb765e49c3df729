//! Random streams: the stored object, and a replay that is stored as the same object.

use contract_id::contract;
use dialect::{Dialect, StreamObject, keep_whole, replay};
use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::{Map, Value, json};

/// A choice of a complete reply, and the pieces of its stream.
#[derive(Clone, Debug)]
struct GeneratedChoice {
    whole: Value,
    pieces: Vec<Value>,
}

fn text() -> impl Strategy<Value = Vec<String>> {
    let character = prop_oneof![
        any::<char>(),
        prop::sample::select(vec!['"', '\\', '\n', 'é', '😀', '\u{2028}', 'a'])
    ];
    vec(vec(character, 0..6).prop_map(String::from_iter), 0..4)
}

fn joined(pieces: &[String]) -> Value {
    json!(pieces.concat())
}

/// A call: its name, its arguments and the positions where they are split.
fn call() -> impl Strategy<Value = (String, Value, Vec<Index>)> {
    let value = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!([{}]))
    ];
    (
        "[a-z]{1,8}",
        value.prop_map(|value| json!({"a": value})),
        vec(any::<Index>(), 0..4),
    )
}

/// The last members of a choice: its finish reason, and unknown members.
fn end() -> impl Strategy<Value = Map<String, Value>> {
    let why = prop::sample::select(vec!["stop", "length", "tool_calls", "content_filter"]);
    let stop = prop_oneof![
        Just(Value::Null),
        any::<u64>().prop_map(Value::from),
        Just(json!("END"))
    ];
    (why, stop, any::<Option<i64>>()).prop_map(|(why, stop, own)| {
        let mut end = Map::from_iter([
            ("finish_reason".to_owned(), json!(why)),
            ("stop_reason".to_owned(), stop),
        ]);
        end.extend(own.map(|own| ("own".to_owned(), json!({"a": [own, null]}))));
        end
    })
}

fn chat_choice() -> impl Strategy<Value = GeneratedChoice> {
    let texts = (text(), text(), text());
    (texts, vec(call(), 0..3), end(), any::<[bool; 3]>()).prop_map(|((content, thoughts, refusal), calls, end, flags)| {
        let [with_logprobs, with_ids, older] = flags;
        let thinks = if older { "reasoning_content" } else { "reasoning" };
        let mut pieces = vec![json!({"delta": {"role": "assistant", "content": ""}, "logprobs": null})];
        pieces.extend(thoughts.iter().map(|piece| json!({"delta": {thinks: piece}})));
        let (mut entries, mut ids) = (Vec::new(), Vec::new());
        for (at, piece) in content.iter().enumerate() {
            let mut chunk = json!({"delta": {"content": piece}, "finish_reason": null});
            if with_logprobs {
                entries.push(json!({"token": piece, "logprob": -0.1 * f64::from(u32::try_from(at).unwrap()), "top_logprobs": []}));
                chunk["logprobs"] = json!({"content": [entries[at]], "refusal": null});
            }
            if with_ids {
                ids.push(json!(at));
                chunk["token_ids"] = json!([at]);
            }
            pieces.push(chunk);
        }
        pieces.extend(refusal.iter().map(|piece| json!({"delta": {"refusal": piece}})));
        let mut made_calls = Vec::new();
        for (at, (name, arguments, cuts)) in calls.iter().enumerate() {
            let (id, arguments) = (format!("call_{at}"), arguments.to_string());
            let first = json!({"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
            pieces.push(json!({"delta": {"tool_calls": [first]}}));
            let parts = cut(&arguments, cuts);
            pieces.extend(parts.iter().map(|part| {
                json!({"delta": {"tool_calls": [{"index": at, "function": {"arguments": part}}]}})
            }));
            made_calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
        }
        let has_text = |pieces: &[String]| !pieces.concat().is_empty();
        let without_text = !has_text(&content) && (has_text(&thoughts) || has_text(&refusal) || !calls.is_empty());
        let mut message = json!({"role": "assistant", "content": if without_text { Value::Null } else { joined(&content) }});
        for (name, pieces) in [(thinks, &thoughts), ("refusal", &refusal)] {
            if !pieces.is_empty() {
                message[name] = joined(pieces);
            }
        }
        if !made_calls.is_empty() {
            message["tool_calls"] = Value::from(made_calls);
        }
        let mut whole = json!({"message": message, "logprobs": null});
        if !entries.is_empty() {
            whole["logprobs"] = json!({"content": entries, "refusal": null});
        }
        if !ids.is_empty() {
            whole["token_ids"] = Value::from(ids);
        }
        finish(GeneratedChoice { whole, pieces }, json!({"delta": {}}), end)
    })
}

fn completion_choice() -> impl Strategy<Value = GeneratedChoice> {
    (text(), end(), any::<bool>()).prop_map(|(text, end, with_logprobs)| {
        let mut logprobs = json!({"tokens": [], "token_logprobs": [], "text_offset": []});
        let mut pieces = Vec::new();
        for piece in &text {
            pieces.push(json!({"text": piece, "logprobs": null}));
            if with_logprobs {
                let one = json!({"tokens": [piece], "token_logprobs": [null], "text_offset": [7]});
                for (name, list) in one.as_object().unwrap() {
                    logprobs[name].as_array_mut().unwrap().push(list[0].clone());
                }
                pieces.last_mut().unwrap()["logprobs"] = one;
            }
        }
        let has_entries = with_logprobs && !text.is_empty();
        let whole =
            json!({"text": joined(&text), "logprobs": if has_entries { logprobs } else { Value::Null }});
        finish(GeneratedChoice { whole, pieces }, json!({"text": ""}), end)
    })
}

fn finish(mut made: GeneratedChoice, mut last: Value, end: Map<String, Value>) -> GeneratedChoice {
    made.whole.as_object_mut().unwrap().extend(end.clone());
    last.as_object_mut().unwrap().extend(end);
    made.pieces.push(last);
    made
}

fn cut<'a>(text: &'a str, cuts: &[Index]) -> Vec<&'a str> {
    let mut cuts: Vec<_> = cuts
        .iter()
        .map(|cut| text.floor_char_boundary(cut.index(text.len() + 1)))
        .collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|ends| &text[ends[0]..ends[1]])
        .collect()
}

/// A reply: its choices, the order of their pieces, its usage, and its spelling.
#[derive(Clone, Debug)]
struct GeneratedReply {
    choices: Vec<GeneratedChoice>,
    order: Vec<Index>,
    usage: Option<u32>,
    is_ascii: bool,
    between: &'static str,
}

fn reply(choice: impl Strategy<Value = GeneratedChoice>) -> impl Strategy<Value = GeneratedReply> {
    let between = prop::sample::select(vec!["", ": ping\n\n", "data:\n\n", "\r\n"]);
    (
        vec(choice, 1..4),
        vec(any::<Index>(), 60),
        any::<Option<u32>>(),
        any::<bool>(),
        between,
    )
        .prop_map(
            |(choices, order, usage, is_ascii, between)| GeneratedReply {
                choices,
                order,
                usage,
                is_ascii,
                between,
            },
        )
}

impl GeneratedReply {
    fn whole(&self, object: &str) -> Value {
        let choices = self.choices.iter().enumerate().map(|(index, made)| {
            let mut choice = made.whole.clone();
            choice["index"] = json!(index);
            choice
        });
        let mut whole = json!({"id": "c-1", "object": object, "created": 7, "model": "m", "choices": Value::from_iter(choices),
            "prompt_token_ids": [1, 2], "prompt_text": null});
        if let Some(usage) = self.usage {
            whole["usage"] = json!({"prompt_tokens": usage, "completion_tokens": 1});
        }
        whole
    }

    fn stream(&self, object: &str) -> String {
        let mut left: Vec<_> = self.choices.iter().map(|made| made.pieces.iter()).collect();
        let mut stream = String::new();
        let mut write = |choices: Value, usage: Value| {
            let mut chunk = json!({"id": "c-1", "object": object, "created": 7, "model": "m", "choices": choices});
            chunk["usage"] = usage;
            if stream.is_empty() {
                chunk["prompt_token_ids"] = json!([1, 2]);
                chunk["prompt_text"] = Value::Null;
            }
            let text = if self.is_ascii {
                ascii(&chunk.to_string())
            } else {
                chunk.to_string()
            };
            stream.extend([self.between, "data: ", &text, "\n\n"]);
        };
        let mut turns = self.order.iter().cycle();
        while left.iter().any(|pieces| pieces.len() > 0) {
            let waiting: Vec<_> = (0..left.len()).filter(|at| left[*at].len() > 0).collect();
            let index = waiting[turns.next().unwrap().index(waiting.len())];
            let mut choice = left[index].next().unwrap().clone();
            choice["index"] = json!(index);
            write(json!([choice]), Value::Null);
        }
        if let Some(usage) = self.usage {
            write(
                json!([]),
                json!({"prompt_tokens": usage, "completion_tokens": 1}),
            );
        }
        stream.push_str("data: [DONE]\n\n");
        stream
    }
}

/// JSON with escaped non-ASCII characters, as some engines write it.
fn ascii(json: &str) -> String {
    let mut out = String::new();
    for character in json.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            let mut units = [0; 2];
            out.extend(
                character
                    .encode_utf16(&mut units)
                    .iter()
                    .map(|unit| format!("\\u{unit:04x}")),
            );
        }
    }
    out
}

/// Reads the stream split at these positions; the stored object is `expected`, and a replay is
/// stored as the same bytes.
fn check(
    dialect: Dialect,
    stream: &str,
    cuts: &[Index],
    expected: &Value,
) -> Result<(), TestCaseError> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    let pieces: Vec<_> = cuts
        .windows(2)
        .map(|ends| &stream.as_bytes()[ends[0]..ends[1]])
        .collect();
    let stored = StreamObject::read(dialect, &pieces).unwrap();
    prop_assert_eq!(
        &serde_json::from_slice::<Value>(&stored.body).unwrap(),
        expected
    );
    prop_assert_eq!(keep_whole(dialect, &stored.body), Ok(stored.clone()));
    let replayed = replay(dialect, &stored.body, stored.has_usage).unwrap();
    let again = StreamObject::read(dialect, &[&replayed]).unwrap();
    prop_assert_eq!(
        String::from_utf8(again.body).unwrap(),
        String::from_utf8(stored.body.clone()).unwrap()
    );
    // Without usage only that member is missing.
    let mut without = expected.clone();
    without.as_object_mut().unwrap().remove("usage");
    let replayed = replay(dialect, &stored.body, false).unwrap();
    let again = StreamObject::read(dialect, &[&replayed]).unwrap();
    prop_assert_eq!(
        serde_json::from_slice::<Value>(&again.body).unwrap(),
        without
    );
    Ok(())
}

/// Texts that are nearly valid streams.
fn nearly(whole: String) -> impl Strategy<Value = Vec<u8>> {
    let bytes = whole.into_bytes();
    (
        vec(
            (
                any::<Index>(),
                prop::sample::select(b"\"\\{}[]:,0an\n\0\xff".to_vec()),
            ),
            0..4,
        ),
        any::<Index>(),
        any::<bool>(),
    )
        .prop_map(move |(changes, end, is_cut)| {
            let mut bytes = bytes.clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if is_cut {
                bytes.truncate(end.index(bytes.len() + 1));
            }
            bytes
        })
}

fn nothing_panics(bytes: &[u8]) -> Result<(), TestCaseError> {
    for dialect in [Dialect::Chat, Dialect::Completions, Dialect::Messages] {
        let _ = keep_whole(dialect, bytes);
        let _ = replay(dialect, bytes, true);
        if let Ok(stored) = StreamObject::read(dialect, &[bytes]) {
            prop_assert_eq!(keep_whole(dialect, &stored.body), Ok(stored.clone()));
            let replayed = replay(dialect, &stored.body, stored.has_usage);
            let again =
                replayed.and_then(|replayed| StreamObject::read(dialect, &[&replayed]).ok());
            prop_assert_eq!(again, Some(stored));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    #[contract("CK29", "CH18", "B3")]
    fn a_chat_stream_is_stored_completely_however_it_is_split(made in reply(chat_choice()), cuts in vec(any::<Index>(), 0..9)) {
        check(Dialect::Chat, &made.stream("chat.completion.chunk"), &cuts, &made.whole("chat.completion"))?;
    }

    #[test]
    #[contract("CK29", "CH18", "B3")]
    fn a_completion_stream_is_stored_completely_however_it_is_split(
        made in reply(completion_choice()),
        cuts in vec(any::<Index>(), 0..9),
    ) {
        check(Dialect::Completions, &made.stream("text_completion"), &cuts, &made.whole("text_completion"))?;
    }

    #[test]
    #[contract("CH16")]
    fn no_truncated_stream_is_stored(made in reply(chat_choice()), end in any::<Index>()) {
        let stream = made.stream("chat.completion.chunk");
        let end = end.index(stream.len() - "data: [DONE]\n\n".len());
        prop_assert!(StreamObject::read(Dialect::Chat, &[&stream.as_bytes()[..end]]).is_err());
    }

    #[test]
    fn a_nearly_valid_stream_neither_panics_nor_stores_an_unreplayable_object(
        bytes in reply(chat_choice()).prop_flat_map(|made| nearly(made.stream("chat.completion.chunk")))
    ) {
        nothing_panics(&bytes)?;
    }

    #[test]
    fn no_nearly_valid_object_makes_it_panic(
        bytes in reply(chat_choice()).prop_flat_map(|made| nearly(made.whole("chat.completion").to_string()))
    ) {
        nothing_panics(&bytes)?;
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        nothing_panics(&bytes)?;
    }
}
