//! Generates valid bodies of chat requests as text: key order, spelling, spaces and unknown fields
//! vary.

use proptest::prelude::*;

/// A body that names the model `m`.
pub(crate) fn body() -> impl Strategy<Value = Vec<u8>> {
    let model = prop_oneof![Just(r#""m""#), Just(r#""\u006d""#), Just(r#""\u006D""#)]
        .prop_map(str::to_owned);
    let field = (unknown_key(), value());
    let known = prop_oneof![
        Just((r#""stream""#.to_owned(), "false".to_owned())),
        Just((r#""stre\u0061m""#.to_owned(), "true".to_owned())),
        Just((r#""stream""#.to_owned(), "null".to_owned())),
        Just((r#""max_tokens""#.to_owned(), "1e3".to_owned())),
        Just((r#""n""#.to_owned(), "-0.0E+1".to_owned())),
    ];
    let messages = prop_oneof![
        prop::collection::vec(message(), 0..4).prop_map(|all| format!("[{}]", all.join(" , "))),
        value(),
    ];
    (
        model,
        messages,
        prop::option::of(known),
        prop::collection::vec(field, 0..8),
    )
        .prop_map(|(model, messages, known, mut fields)| {
            fields.push((r#""model""#.to_owned(), model));
            fields.push((r#""messages""#.to_owned(), messages));
            fields.extend(known);
            fields
        })
        .prop_shuffle()
        .prop_flat_map(|fields| {
            let spaces = prop::collection::vec(space(), fields.len() * 4 + 2);
            (Just(fields), spaces)
        })
        .prop_map(|(fields, spaces)| {
            let mut spaces = spaces.iter();
            let mut space = || spaces.next().map_or("", String::as_str);
            let mut text = format!("{}{{", space());
            for (number, (key, value)) in fields.iter().enumerate() {
                let comma = if number == 0 { "" } else { "," };
                text += &format!(
                    "{comma}{}{key}{}:{}{value}{}",
                    space(),
                    space(),
                    space(),
                    space()
                );
            }
            (text + "}" + space()).into_bytes()
        })
}

fn message() -> impl Strategy<Value = String> {
    (string(), value(), any::<bool>()).prop_map(|(role, content, swapped)| match swapped {
        false => format!(r#"{{"role":{role},"content":{content}}}"#),
        true => format!(r#"{{ "content" : {content}, "name":{role}, "role":"user"}}"#),
    })
}

/// A key that routing does not read; it may occur twice.
fn unknown_key() -> impl Strategy<Value = String> {
    string().prop_map(|text| format!("\"x-{}", &text[1..]))
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        3 => string(),
        1 => prop_oneof![Just("true"), Just("false"), Just("null")].prop_map(str::to_owned),
        1 => prop_oneof![
            Just("0"), Just("-0"), Just("1E400"), Just("-1.5e-999"), Just("123456789012345678901234567890.000"),
        ].prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let list = (prop::collection::vec(inner.clone(), 0..4), space());
        let object = (prop::collection::vec((string(), inner), 0..4), space());
        prop_oneof![
            list.prop_map(|(values, space)| format!(
                "[{space}{}{space}]",
                values.join(&format!("{space},"))
            )),
            object.prop_map(|(fields, space)| {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(key, value)| format!("{key}{space}:{space}{value}"))
                    .collect();
                format!("{{{space}{}}}", fields.join(","))
            }),
        ]
    })
}

/// A string with its quotes: plain characters of any script, every form of escape, lone surrogates
/// too.
fn string() -> impl Strategy<Value = String> {
    let plain = any::<char>().prop_filter_map("escaped in strings", |letter| {
        (!letter.is_ascii_control() && !matches!(letter, '"' | '\\')).then(|| letter.to_string())
    });
    let escape = prop_oneof![
        Just(r"\n"),
        Just(r"\r\n"),
        Just(r#"\""#),
        Just(r"\\"),
        Just(r"\/"),
        Just(r"\b\f\t"),
        Just(r"\u0000"),
        Just(r"\u00e4"),
        Just(r"\uD83D\uDE00"),
        Just(r"\ud800"),
        Just("data: [DONE]"),
        Just("e\u{301}"),
        Just("\u{feff}"),
        Just("\u{2028}"),
        Just("\u{7f}"),
    ]
    .prop_map(str::to_owned);
    prop::collection::vec(prop_oneof![4 => plain, 1 => escape], 0..12)
        .prop_map(|parts| format!("\"{}\"", parts.concat()))
}

fn space() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t"), 1 => Just("\n  \n")]
        .prop_map(str::to_owned)
}
