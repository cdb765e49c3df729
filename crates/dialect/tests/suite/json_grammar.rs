//! Bodies that are JSON: the view agrees with a strict parser, and withstands hostile texts.

use contract_id::contract;
use dialect::{Dialect, ErrorCode, MAX_DEPTH, MAX_NODES, view};
use proptest::prelude::*;
use serde_json::Value;

fn code(body: &[u8]) -> Option<ErrorCode> {
    view(Dialect::Chat, body).err().map(|error| error.code())
}

/// A body with `text` as the value of a key that routing does not read.
fn around(text: &str) -> String {
    format!("{{\"model\":\"m\",\"other\":{text}}}")
}

#[test]
fn the_grammar_accepts_exactly_json() {
    let good = [
        "0",
        "-0",
        "1e5",
        "1E+5",
        "-1.5e-10",
        "1.0",
        "123456789012345678901234567890",
        "true",
        "false",
        "null",
        "\"\"",
        r#""\u0000\"\\\/\b\f\n\r\t""#,
        "[]",
        "{}",
        "[[],{}]",
        "[1,2 , 3]",
        r#"{"a":{"b":[{}]}}"#,
        " \n\r\t1 \n",
        "\"\u{7f}é😀\"",
    ];
    let bad = [
        "",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "Infinity",
        "-Infinity",
        "tru",
        "True",
        "nul",
        "undefined",
        "'a'",
        "\"",
        "\"a",
        r#""\x""#,
        r#""\u12g4""#,
        r#""\u123""#,
        "\"\t\"",
        "\"\n\"",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{",
        "}",
        "{a:1}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{,"a":1}"#,
        r#"{"a":1 "b":2}"#,
        r#"{1:2}"#,
        "[}",
        "{]",
        "// c\n1",
        "/* c */1",
        "1,2",
        "\u{a0}1",
        "\u{c}1",
    ];
    for text in good {
        assert_eq!(code(around(text).as_bytes()), None, "{text}");
    }
    for text in bad {
        assert_eq!(
            code(around(text).as_bytes()),
            Some(ErrorCode::InvalidJson),
            "{text}"
        );
    }
}

#[test]
#[contract("S61")]
fn a_body_is_one_object_in_utf8_without_mark_or_trailing_bytes() {
    for body in [
        &b""[..],
        b" ",
        b"{} {}",
        b"{}x",
        b"{\"model\":\"m\"}\0",
        b"\xEF\xBB\xBF{\"model\":\"m\"}",
        b"{\"model\":\"\xff\"}",
    ] {
        assert_eq!(code(body), Some(ErrorCode::InvalidJson), "{body:?}");
    }
    for body in [&b"[]"[..], b"null", b"1", b"\"x\"", b" [ {} ] "] {
        assert_eq!(code(body), Some(ErrorCode::InvalidRequest), "{body:?}");
    }
    assert_eq!(code(b" \r\n\t{\"model\":\"m\"} \n"), None);
}

#[test]
fn the_message_says_where_the_text_stops_being_json() {
    let error = view(Dialect::Chat, br#"{"model": "m", "n": 01}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the body is not valid json: expected a comma or the end of the container at byte 21; send one json object in utf-8"
    );
}

#[test]
#[contract("S61")]
fn nesting_is_accepted_up_to_the_limit_and_parsed_without_recursion() {
    let nested = |levels: usize| around(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
    let mixed = |levels: usize| {
        around(&format!(
            "{}1{}",
            "{\"a\":[".repeat(levels),
            "]}".repeat(levels)
        ))
    };
    let limit = MAX_DEPTH as usize;
    assert_eq!(code(nested(limit - 1).as_bytes()), None);
    assert_eq!(code(nested(limit).as_bytes()), Some(ErrorCode::InvalidJson));
    assert_eq!(code(mixed(limit / 2 - 1).as_bytes()), None);
    assert_eq!(
        code(mixed(limit / 2).as_bytes()),
        Some(ErrorCode::InvalidJson)
    );
    for open in ["[", "{\"a\":"] {
        assert_eq!(
            code(open.repeat(1_000_000).as_bytes()),
            Some(ErrorCode::InvalidJson)
        );
        assert_eq!(
            code(around(&open.repeat(1_000_000)).as_bytes()),
            Some(ErrorCode::InvalidJson)
        );
    }
}

#[test]
#[contract("S61")]
fn more_values_than_the_limit_are_rejected() {
    let many = |count: usize| around(&format!("[{}0]", "0,".repeat(count - 1)));
    // The object, its two keys, the model and the list also count as values.
    let free_nodes = MAX_NODES as usize - 5;
    assert_eq!(code(many(free_nodes).as_bytes()), None);
    assert_eq!(
        code(many(free_nodes + 1).as_bytes()),
        Some(ErrorCode::InvalidJson)
    );
    let keys: String = (0..600_000).map(|n| format!("\"k{n}\":0,")).collect();
    assert_eq!(
        code(format!("{{{keys}\"model\":\"m\"}}").as_bytes()),
        Some(ErrorCode::InvalidJson)
    );
}

#[test]
fn long_numbers_and_strings_are_scanned_without_allocation() {
    assert_eq!(code(around(&"9".repeat(4 << 20)).as_bytes()), None);
    assert_eq!(
        code(around(&format!("\"{}\"", "é\\n".repeat(1 << 20))).as_bytes()),
        None
    );
}

#[test]
fn a_special_byte_is_found_at_every_place_of_a_word() {
    for before in 0..40 {
        for (special, good) in [
            ("\\\"", true),
            ("\u{1f}", false),
            ("\u{20}", true),
            ("\u{7f}", true),
            ("\u{80}", true),
            ("\\q", false),
        ] {
            let text = format!("\"{}{special}{}\"", "x".repeat(before), "!".repeat(17));
            assert_eq!(
                code(around(&text).as_bytes()).is_none(),
                good,
                "{special:?} after {before}"
            );
            assert_eq!(serde_json::from_str::<Value>(&text).is_ok(), good);
        }
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(("\\PC{0,6}", inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = view(Dialect::Chat, &body);
        let _ = view(Dialect::Completions, &body);
    }

    #[test]
    fn no_text_of_json_letters_panics_and_both_parsers_agree(text in "[\\[\\]{}:,\"\\\\ntrue01.eE+\\- du]{0,24}") {
        // The other parser rejects lone surrogates and numbers beyond f64, which engines accept.
        let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
        let ours = code(around(&text).as_bytes()).is_none();
        prop_assert_eq!(ours, theirs, "{}", text);
    }

    #[test]
    fn the_output_of_a_serialiser_is_accepted(value in json_value(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        prop_assert_eq!(code(around(&text).as_bytes()), None);
    }

    #[test]
    fn a_truncated_body_is_never_json(value in json_value(), cut in any::<prop::sample::Index>()) {
        let body = around(&value.to_string());
        let cut = cut.index(body.len());
        prop_assert_eq!(code(&body.as_bytes()[..cut]), Some(ErrorCode::InvalidJson));
    }

    #[test]
    fn fields_read_as_a_parser_reads_them(
        model in ".{1,20}", user in "\\PC{1,10}", salt in ".{0,8}", stream in any::<bool>(), max in any::<u32>(),
        messages in json_value(), extra in json_value(), order in any::<u8>(),
    ) {
        let mut members = vec![
            ("model", Value::from(model.clone())), ("user", Value::from(user.clone())), ("cache_salt", Value::from(salt.clone())),
            ("stream", Value::from(stream)), ("max_tokens", Value::from(max)), ("messages", messages.clone()), ("zzz", extra),
        ];
        let turns = usize::from(order) % members.len();
        members.rotate_left(turns);
        let body = serde_json::to_vec(&Value::Object(members.into_iter().map(|(k, v)| (k.into(), v)).collect())).unwrap();
        let seen = view(Dialect::Chat, &body).unwrap();
        prop_assert_eq!(&seen.model, &model);
        prop_assert_eq!(seen.session.key(), Some(user.as_str()));
        prop_assert_eq!(seen.cache_salt.as_deref(), Some(salt.as_str()));
        prop_assert_eq!(seen.stream, stream);
        prop_assert_eq!(seen.max_tokens, Some(max));
        match seen.prompt {
            dialect::PromptPart::Messages(raw) => prop_assert_eq!(raw.as_str(), messages.to_string()),
            dialect::PromptPart::None => prop_assert!(messages.is_null()),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
