//! A body is walked once: later readers find its members by their places.

use contract_id::contract;
use dialect::{
    ChatMessages, Dialect, MAX_NODES, PassedOn, PromptPart, RequestView, ViewError,
    messages_to_chat, responses_view, view, view_of_translated,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const DIALECTS: [Dialect; 6] = [
    Dialect::Chat,
    Dialect::Completions,
    Dialect::Embeddings,
    Dialect::ChatBatch,
    Dialect::TokenIds,
    Dialect::SglangGenerate,
];

/// The view without the parts of its messages, which are found again where they are needed.
fn without_turns(mut view: RequestView<'_>) -> String {
    if let PromptPart::Messages(messages) = &view.prompt {
        view.prompt = PromptPart::Messages(ChatMessages::from(messages.raw()));
    }
    format!("{view:?}")
}

/// What a chat reads as with a walk through all of it, and with one through what the translation
/// wrote.
fn both(chat: &[u8], passed_on: &PassedOn) -> [Result<String, ViewError>; 2] {
    [
        view(Dialect::Chat, chat),
        view_of_translated(Dialect::Chat, chat, passed_on),
    ]
    .map(|read| read.map(|view| format!("{view:?}")))
}

/// The chats of a body that is a message and a request of the responses API.
fn chats(body: &[u8]) -> Vec<(Vec<u8>, PassedOn)> {
    let message = messages_to_chat(body).map(|it| (it.body, it.passed_on));
    let response = responses_view(body).map(|it| (it.chat, it.passed_on));
    [message.ok(), response.ok()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
#[contract("S61")]
fn a_body_is_read_again_by_the_places_of_its_members() {
    for body in [
        r#"{"model":"m","messages":[{"role":"user","content":"a\n"},7],"stream":true,"tools":[{}],"n":2}"#,
        r#" { "mod\u0065l" : "m" , "prompt" : [1, 2] , "max_tokens":3, "x":{"model":1} } "#,
        r#"{"model":"m","input":["a","b"],"user":"u","cache_salt":"s"}"#,
        r#"{"model":"m","messages":[[{"role":"user","content":"a"}],[{}]]}"#,
        r#"{"model":"m","token_ids":[1,2],"sampling_params":{"n":3,"max_tokens":5,"stop":["x"]}}"#,
        r#"{"model":"m","text":"a","extra_key":"k","lora_path":"l","image_data":"i"}"#,
    ] {
        for dialect in DIALECTS {
            let first = view(dialect, body.as_bytes()).unwrap();
            let again = first.spans.view(dialect, body.as_bytes()).unwrap();
            assert_eq!(without_turns(again), without_turns(first), "{body}");
        }
    }
}

#[test]
#[contract("S61")]
fn neither_a_later_reader_nor_that_of_a_translation_walks_through_a_large_member() {
    // A walk would find the error.
    let damaged = |text: &[u8]| {
        let text = std::str::from_utf8(text).unwrap();
        assert!(text.contains("[1,2,3]"), "{text}");
        text.replace("[1,2,3]", "[1,2,}]").into_bytes()
    };
    let body =
        br#"{"model":"m","messages":[{"role":"user","content":"a"}],"input":"a","x":[1,2,3]}"#;
    let first = view(Dialect::Chat, body).unwrap();
    let other = damaged(body);
    assert!(view(Dialect::Chat, &other).is_err());
    let again = first.spans.view(Dialect::Chat, &other).unwrap();
    assert_eq!(again.model, "m");
    let chats = chats(body);
    assert_eq!(chats.len(), 2);
    for (chat, passed_on) in chats {
        let other = damaged(&chat);
        let [whole, part] = both(&other, &passed_on);
        assert!(whole.is_err());
        assert_eq!(part, both(&chat, &passed_on)[0]);
    }
}

#[test]
fn places_of_another_body_are_not_used() {
    let first = view(Dialect::Chat, br#"{"model":"m","messages":[]}"#).unwrap();
    let other = first
        .spans
        .view(Dialect::Chat, br#"{"model":"other","messages":[]}"#)
        .unwrap();
    assert_eq!(other.model, "other");
    let read = view_of_translated(
        Dialect::Chat,
        br#"{"model":"m"}"#,
        &chats(br#"{"model":"m","messages":[],"x":1}"#)[0].1,
    );
    assert_eq!(read.unwrap().model, "m");
}

#[test]
#[contract("S61")]
fn a_translation_with_more_members_than_are_kept_is_read_the_same() {
    let members: String = (0..4097).map(|at| format!(r#","k{at}":{at}"#)).collect();
    for last in ["", r#","user":"u","seed":3"#] {
        let body = format!(r#"{{"model":"m","messages":[],"input":"a"{members}{last}}}"#);
        for (chat, passed_on) in chats(body.as_bytes()) {
            assert_eq!(passed_on, PassedOn::default());
            let [whole, part] = both(&chat, &passed_on);
            assert!(whole.is_ok());
            assert_eq!(whole, part);
        }
    }
}

#[test]
#[contract("S61")]
fn a_translation_that_has_too_many_values_is_refused_as_before() {
    // The body has nine other values and names, and the translation adds four for a stream.
    for (left, fits) in [(13, true), (12, false), (9, false)] {
        let count = MAX_NODES as usize - left;
        let numbers = vec!["7"; count].join(",");
        let body = format!(r#"{{"model":"m","messages":[],"stream":true,"x":[{numbers}]}}"#);
        let translated = messages_to_chat(body.as_bytes()).unwrap();
        let [whole, part] = both(&translated.body, &translated.passed_on);
        assert_eq!(whole.is_ok(), fits, "{left}");
        assert_eq!(whole, part, "{left}");
    }
}

/// A body with names that mean something, in any order and number, and values that may be wrong.
fn body() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "model",
        "messages",
        "input",
        "system",
        "stream",
        "tools",
        "tool_choice",
        "n",
        "stop",
        "user",
        "metadata",
        "seed",
        "x",
        "prompt",
        "response_format",
        "store",
    ]);
    let values = prop::sample::select(vec![
        json!("m"),
        json!(null),
        json!(true),
        json!(2),
        json!([]),
        json!({"user_id": "u"}),
        json!([{"role": "user", "content": "a\n\u{e9}"}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "b"}]}, 7]),
        json!([{"type": "function", "name": "f", "input_schema": {"type": "object"}}]),
    ]);
    prop::collection::btree_map(names, values, 0..10).prop_map(|members| {
        let members = members.into_iter();
        Value::from_iter(members.map(|(name, value)| (name.to_owned(), value)))
    })
}

proptest! {
    #[test]
    #[contract("S61")]
    fn a_translation_reads_as_it_does_with_a_walk_through_all_of_it(mut body in body()) {
        body["model"] = json!("m");
        for (chat, passed_on) in chats(body.to_string().as_bytes()) {
            let [whole, part] = both(&chat, &passed_on);
            prop_assert_eq!(whole, part);
        }
    }
}
