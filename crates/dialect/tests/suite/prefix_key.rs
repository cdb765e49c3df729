//! The prefix key of a prompt.

use contract_id::contract;
use dialect::{Anchor, Dialect, messages_to_chat, view};
use serde_json::{Value, json};

/// The default cut, in bytes.
const CUT: usize = 1024;

fn hex(key: [u8; 32]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key of a chat.
fn key(model: &str, messages: &Value) -> Option<String> {
    key_of(
        Dialect::Chat,
        &json!({"model": model, "messages": messages}),
        CUT,
    )
}

fn key_of(dialect: Dialect, body: &Value, cut: usize) -> Option<String> {
    let body = body.to_string();
    let view = view(dialect, body.as_bytes()).expect("the body is good");
    Anchor::of(&view).map(|anchor| hex(anchor.key(&view.model, cut)))
}

fn system(text: &str) -> Value {
    json!([{"role": "system", "content": text}, {"role": "user", "content": "hello"}])
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Computed with Python's hashlib: sha256(model + NUL + kind + text).
const VECTORS: [(&str, char, &str, &str); 5] = [
    (
        "qwen",
        'S',
        "You are a helpful assistant.",
        "f0bcd4b62e8746d6b8b7b38189f91130e7f74763e277d03f52eb97594daebeec",
    ),
    (
        "qwen",
        'M',
        "You are a helpful assistant.",
        "ee53b6170b0876ef039eeb6be69cccd72ff9482280b5a8e61798b5be15b1e028",
    ),
    (
        "ab",
        'S',
        "c",
        "55f7ea52c54b1622d133b51403cb0797e2cccf6ffa2b46f72e745a64e5ff507d",
    ),
    (
        "a",
        'S',
        "bc",
        "a9b4ea2e9cf19bb018ff6caeb3aaacd5582a639256807e2cd48ec01f3f4a94f0",
    ),
    (
        "m",
        'S',
        "Grüße, 世界",
        "a0ed13e0ac54fbf022588610b6a13fbea63f72d850f96c91afae3afa0179bd85",
    ),
];

#[test]
#[contract("CK6", "CK7", "CK8", "CK11", "CK12")]
fn golden_vectors() {
    for (model, kind, text, expected) in VECTORS {
        let messages = if kind == 'S' {
            system(text)
        } else {
            user(text)
        };
        assert_eq!(
            key(model, &messages).as_deref(),
            Some(expected),
            "{model} {kind} {text}"
        );
    }
}

/// The documented rule for producers of keys: such a line and the line ends behind it do not count.
#[test]
#[contract("CK7")]
fn a_system_prompt_counts_from_behind_the_line_that_changes_with_every_request() {
    let (model, _, text, expected) = VECTORS[0];
    for line in [
        "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;",
        "X-Anthropic-Billing-Header: cch=1;\n\n",
        "x-anthropic-billing-header: cc_version=2.1.37\r\n",
        "x-anthropic-billing-header:\n",
    ] {
        let whole = system(&format!("{line}{text}"));
        assert_eq!(key(model, &whole).as_deref(), Some(expected), "{line:?}");
        let parts = json!([{"type": "text", "text": line}, {"type": "text", "text": text}]);
        let in_parts = json!([{"role": "system", "content": parts}]);
        assert_eq!(key(model, &in_parts).as_deref(), Some(expected), "{line:?}");
        let alone = json!([
            {"role": "system", "content": line.trim_end()}, {"role": "user", "content": text}
        ]);
        assert_eq!(key(model, &alone), key(model, &user(text)), "{line:?}");
        let of_user = user(&format!("{line}{text}"));
        assert_ne!(key(model, &of_user), key(model, &user(text)), "{line:?}");
    }
}

#[test]
#[contract("CK13", "CK14")]
fn the_text_is_cut_between_characters_and_the_rest_is_ignored() {
    let long = "a".repeat(2000);
    let expected = "630d7ce8e6b9f03e74052cabb7992679787115a5d29df9bfe00352167ae731a7";
    assert_eq!(key("m", &user(&long)).as_deref(), Some(expected));
    assert_eq!(
        key("m", &user(&format!("{}other", &long[..CUT]))).as_deref(),
        Some(expected)
    );
    assert_ne!(
        key("m", &user(&format!("{}other", &long[..CUT - 1]))).as_deref(),
        Some(expected)
    );

    let cut = |text: &str, bytes| {
        key_of(
            Dialect::Chat,
            &json!({"model": "m", "messages": system(text)}),
            bytes,
        )
    };
    // The umlaut is the third and fourth byte.
    assert_eq!(cut("Grüße", 3), cut("Gr", CUT));
    assert_eq!(cut("Grüße", 4), cut("Grü", CUT));
    assert_eq!(cut("Grüße", 0), cut("x", 0));
}

#[test]
#[contract("CK9", "CK10")]
fn the_key_uses_the_system_prompt_at_any_position_or_else_the_first_message() {
    let expected = key("m", &system("rules"));
    for messages in [
        json!([{"role": "user", "content": "hi"}, {"role": "system", "content": "rules"}]),
        json!([{"role": "developer", "content": "rules"}, {"role": "system", "content": "others"}]),
        json!([{"role": "system", "content": [{"type": "text", "text": "ru"}, {"type": "text", "text": "les"}]}]),
        json!([{"role": "system", "content": [{"type": "image_url"}, {"type": "text", "text": "rules"}]}]),
    ] {
        assert_eq!(key("m", &messages), expected, "{messages}");
    }

    let first = key("m", &user("hi"));
    for messages in [
        json!([{"role": "user", "content": "hi"}, {"role": "user", "content": "and then"}]),
        json!([{"role": "system", "content": ""}, {"role": "user", "content": "hi"}]),
        json!([{"role": "system", "content": ""}, {"role": "system", "content": "late"}, {"role": "user", "content": "hi"}]),
        json!([{"role": "system"}, {"role": "assistant", "content": [{"text": "hi"}]}]),
        json!([{"role": "user", "content": "hi"}, {"role": "system", "content": null}]),
    ] {
        assert_eq!(key("m", &messages), first, "{messages}");
    }
    assert_eq!(
        key_of(
            Dialect::Completions,
            &json!({"model": "m", "prompt": "hi"}),
            CUT
        ),
        first
    );
}

#[test]
#[contract("CK10")]
fn the_key_uses_the_system_field_of_a_messages_request() {
    let of = |system: &Value, messages: &Value| {
        let body = json!({"model": "m", "max_tokens": 1, "system": system, "messages": messages});
        let chat = messages_to_chat(body.to_string().as_bytes()).expect("the body is good");
        let view = view(Dialect::Chat, &chat.body).expect("a translation is a chat");
        Anchor::of(&view).map(|anchor| hex(anchor.key(&view.model, CUT)))
    };
    let (rules, hi) = (key("m", &system("rules")), key("m", &user("hi")));
    assert_eq!(of(&json!("rules"), &user("hi")), rules);
    assert_eq!(
        of(
            &json!([{"type": "text", "text": "ru", "cache_control": {}}, {"type": "text", "text": "les"}]),
            &user("hi")
        ),
        rules
    );
    for nothing in [json!(null), json!(""), json!([])] {
        assert_eq!(of(&nothing, &user("hi")), hi, "{nothing}");
    }
}

#[test]
#[contract("CK15")]
fn a_request_without_text_has_no_key() {
    for messages in [
        json!([]),
        json!("hello"),
        json!([{"role": "user", "content": ""}]),
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        json!([{"role": "user"}, {"role": "user", "content": "second"}]),
        json!([7, {"role": 3}]),
    ] {
        assert_eq!(key("m", &messages), None, "{messages}");
    }
    for prompt in [json!([1, 2, 3]), json!(["a", "b"]), json!(""), json!(null)] {
        assert_eq!(
            key_of(
                Dialect::Completions,
                &json!({"model": "m", "prompt": prompt}),
                CUT
            ),
            None,
            "{prompt}"
        );
    }
}
