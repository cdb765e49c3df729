//! The Python features that templates expect: methods, JSON, printing of values, clock.

use std::{
    fmt::{self, Write as _},
    iter,
};

use minijinja::{
    Environment, Error, ErrorKind, Output, State,
    value::{Kwargs, Value, ValueKind},
};

use super::{
    json_formatter::JsonFormatter,
    meter::{MAX_DEPTH, charge_text},
};

/// Adds the missing features to an environment.
pub(super) fn register_python(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    // Strings and dictionaries have a length and can be indexed, which is the test's meaning in
    // Python.
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map
        )
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable
        )
    });
    environment.set_formatter(print);
}

/// The template's own error about an unsuitable chat, distinct from other render errors.
#[derive(Debug)]
struct RaisedException(String);

impl fmt::Display for RaisedException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RaisedException {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    charge_text(message)?;
    let raised = RaisedException(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
}

/// Returns the message of `raise_exception`, if that ended the render.
pub(super) fn raised(error: &Error) -> Option<&str> {
    let first: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let raised = iter::successors(first, |error| error.source())
        .find_map(|error| error.downcast_ref::<RaisedException>())?;
    Some(&raised.0)
}

/// Returns JSON as Python writes it: space after comma and colon, other scripts unescaped, keys in
/// their order.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    let ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    let (comma, colon) = match separators.as_deref() {
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
        Some([comma, colon]) => (comma.as_str(), colon.as_str()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "separators are a pair",
            ));
        }
    };
    charge_text(value)?;
    let mut json = JsonFormatter {
        text: String::new(),
        indent,
        ascii,
        sorted,
        comma,
        colon,
    };
    json.write(value, 0)?;
    Ok(Value::from_safe_string(json.text))
}

/// Returns a number as Python writes it.
pub(super) fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => python_float(float),
        _ => value.to_string(),
    }
}

/// Returns the shortest digits that parse to the same number; with an exponent below 1e-4 and from
/// 1e16 on.
fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".into();
    }
    if float.is_infinite() {
        return if float > 0.0 {
            "Infinity".into()
        } else {
            "-Infinity".into()
        };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = float.to_string();
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

/// Prints a value into the text as Python's `str` does. The engine's own printer is correct for all
/// but these kinds.
fn print(output: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    charge_text(value)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => {
            let mut text = String::new();
            repr(&mut text, value, 0)?;
            Ok(output.write_str(&text)?)
        }
        ValueKind::Number if !value.is_integer() => Ok(output.write_str(&number(value))?),
        _ => minijinja::escape_formatter(output, state, value),
    }
}

/// Writes a value as Python's `repr` does.
fn repr(text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::BadSerialization, "nested too deep"));
    }
    match value.kind() {
        ValueKind::String => repr_string(text, value.as_str().unwrap_or_default()),
        ValueKind::Number => text.push_str(&number(value)),
        ValueKind::Seq => {
            text.push('[');
            for (at, item) in value.try_iter()?.enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                repr(text, &item, depth + 1)?;
            }
            text.push(']');
        }
        ValueKind::Map => {
            text.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                repr(text, &key, depth + 1)?;
                text.push_str(": ");
                repr(text, &value.get_item(&key)?, depth + 1)?;
            }
            text.push('}');
        }
        _ => text.push_str(&value.to_string()),
    }
    Ok(())
}

fn repr_string(text: &mut String, string: &str) {
    let quote = if string.contains('\'') && !string.contains('"') {
        '"'
    } else {
        '\''
    };
    text.push(quote);
    for character in string.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' => {
                let _ = write!(text, "\\x{:02x}", u32::from(character));
            }
            _ if character == quote => {
                text.push('\\');
                text.push(character);
            }
            _ => text.push(character),
        }
    }
    text.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, variables: serde_json::Value) -> String {
        let mut environment = Environment::new();
        register_python(&mut environment);
        let render = || {
            environment
                .render_str(template, minijinja::value::Serde(variables))
                .unwrap()
        };
        crate::template::meter::with_budget(1 << 20, render)
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value = serde_json::json!({"value": {
            "z": "<b>&'\u{7f}é\u{2028}\u{1}\"", "a": [1, 2.5, 1e16, 1.0, -0.00001, true, null], "e": [], "o": {},
        }});
        assert_eq!(
            render("{{ value | tojson }}", value),
            "{\"z\": \"<b>&'\u{7f}é\u{2028}\\u0001\\\"\", \"a\": [1, 2.5, 1e+16, 1.0, -1e-05, true, null], \"e\": [], \"o\": {}}"
        );
    }

    #[test]
    fn json_takes_its_options() {
        let value = serde_json::json!({"value": {"b": [1], "a": "é😀"}});
        assert_eq!(
            render(
                "{{ value | tojson(indent=2, ensure_ascii=true, sort_keys=true) }}",
                value.clone()
            ),
            "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\",\n  \"b\": [\n    1\n  ]\n}"
        );
        assert_eq!(
            render("{{ value | tojson(separators=(',', ':')) }}", value),
            "{\"b\":[1],\"a\":\"é😀\"}"
        );
    }

    #[test]
    fn values_print_as_python_prints_them() {
        let value = serde_json::json!({"value": {"a": "it's", "b": ["\"", "é\n", null, true, 1.0]}, "float": 2.50});
        assert_eq!(
            render(
                "{{ value }} {{ float }} {{ none }} {{ true }} {{ 'é<' }}{{ missing }}",
                value
            ),
            "{'a': \"it's\", 'b': ['\"', 'é\\n', None, True, 1.0]} 2.5 None True é<"
        );
    }

    #[test]
    fn strings_and_dictionaries_are_sequences() {
        let value = serde_json::json!({"s": "x", "d": {"a": 1}, "n": 1});
        let tests = "{{ s is sequence }} {{ d is sequence }} {{ n is sequence }} {{ s is iterable }} {{ n is iterable }} {{ u is iterable }}";
        assert_eq!(render(tests, value), "True True False True False False");
    }
}
