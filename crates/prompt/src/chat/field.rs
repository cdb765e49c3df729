//! Reads a request's field from its JSON.
//!
//! **Invariant**: an error names the field and the place in it, never a value: prompts do not
//! belong in errors and logs.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::error::Category;

use super::{number, rejection::unsupported};
use crate::PromptError;

/// Maximum nesting of this parser; the engine's allows more.
const MAX_DEPTH: usize = 127;

/// Reads a field. A value that only the engine's parser accepts is no fault of the request.
pub(super) fn read<'t, T: Deserialize<'t>>(
    field: &'static str,
    text: &'t str,
) -> Result<T, PromptError> {
    serde_json::from_str(text).map_err(|error| {
        let found = match error.classify() {
            Category::Data => "not of the expected form",
            Category::Syntax if number::unlike_python(text).is_some() => {
                return unsupported(format!("a number in {field} that is no float"));
            }
            Category::Syntax if depth(text) > MAX_DEPTH => {
                return unsupported(format!("the depth of {field}"));
            }
            Category::Syntax | Category::Io => "not valid json",
            Category::Eof => "cut short",
        };
        PromptError::Json {
            field,
            found,
            line: error.line(),
            column: error.column(),
        }
    })
}

/// Reads a field whose numbers a template may print.
pub(super) fn json<T: DeserializeOwned>(field: &'static str, text: &str) -> Result<T, PromptError> {
    match number::unlike_python(text) {
        Some(number) => Err(unsupported(format!("the number {number} in {field}"))),
        None => read(field, text),
    }
}

/// Returns the nesting depth of containers in a JSON text.
fn depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut open, mut most) = (0, 0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at += number::string_length(&bytes[at..]),
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn an_error_gives_the_position_and_never_the_content() {
        let list = |text: &str| {
            read::<Vec<Value>>("messages", text)
                .unwrap_err()
                .to_string()
        };
        let error = list("\"a secret prompt\"");
        assert_eq!(
            error,
            "messages is not readable: not of the expected form at line 1 column 17"
        );
        assert_eq!(
            list("[\n\"\\ud800 secret\"]"),
            "messages is not readable: not valid json at line 2 column 8"
        );
        assert_eq!(
            list("[1"),
            "messages is not readable: cut short at line 1 column 2"
        );
    }

    #[test]
    fn limits_of_this_parser_are_no_fault_of_the_request() {
        let nested = format!("[{}1{}]", "[".repeat(200), "]".repeat(200));
        for text in ["[1e400]", r#"[{"ignored":-1E999}]"#, &nested] {
            let error = read::<Vec<Value>>("messages", text).unwrap_err();
            assert!(!error.is_refusal(), "{error}");
        }
        // Half of a surrogate pair: the engine also rejects it.
        assert!(
            read::<Vec<Value>>("messages", r#"["\ud800"]"#)
                .unwrap_err()
                .is_refusal()
        );
    }
}
