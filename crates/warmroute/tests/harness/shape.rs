//! Checks whether a JSON value has a documented shape.

use serde_json::Value;

/// Checks `value` against a template of the same structure whose leaves are type words: `string`,
/// `int`, `number`, `bool`, `null`, `time`, `hex` (16 digits), `numbers` (an object of numbers), or
/// several with `|`. An array has the shape of its elements. All keys must be there, in the
/// template's order; more keys are allowed.
pub fn assert_shape(value: &Value, template: &Value) {
    check(value, template, "$");
}

fn check(value: &Value, template: &Value, at: &str) {
    match (value, template) {
        (Value::Object(value), Value::Object(template)) => {
            let known: Vec<&String> = value
                .keys()
                .filter(|key| template.contains_key(*key))
                .collect();
            let want: Vec<&String> = template.keys().collect();
            assert_eq!(known, want, "keys of {at}");
            for (key, template) in template {
                check(&value[key], template, &format!("{at}.{key}"));
            }
        }
        (Value::Array(values), Value::Array(template)) => {
            for (n, value) in values.iter().enumerate() {
                check(value, &template[0], &format!("{at}[{n}]"));
            }
        }
        (value, Value::String(words)) => {
            assert!(
                words.split('|').any(|word| is(value, word)),
                "{at} is {value}, not {words}"
            );
        }
        _ => panic!("{at} is {value}, not like {template}"),
    }
}

fn is(value: &Value, word: &str) -> bool {
    let text = value.as_str();
    match word {
        "string" => value.is_string(),
        "int" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "bool" => value.is_boolean(),
        "null" => value.is_null(),
        "hex" => text.is_some_and(|text| {
            text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        }),
        // As in 2026-11-20T17:41:09.123Z.
        "time" => {
            text.is_some_and(|text| text.len() == 24 && text.ends_with('Z') && &text[19..20] == ".")
        }
        "numbers" => value
            .as_object()
            .is_some_and(|map| !map.is_empty() && map.values().all(Value::is_number)),
        other => panic!("no such type word: {other}"),
    }
}
