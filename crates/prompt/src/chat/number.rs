//! Numbers that the engine's JSON parser accepts and this crate's parser would change.

/// Returns the first number in a JSON text that would print differently in the engine: there, whole
/// numbers of any size are exact, a minus zero is zero, and a number too large for a float is
/// infinite, which also has a literal.
pub(super) fn unlike_python(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => at += string_length(&bytes[at..]),
            b'-' | b'0'..=b'9' | b'N' | b'I' => {
                let of_number =
                    |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
                at += bytes[at..].iter().take_while(of_number).count();
                let number = &text[start..at];
                if !survives(number) {
                    return Some(number);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the bytes up to and including the closing quote.
pub(super) fn string_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn survives(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    if matches!(digits, "NaN" | "Infinity") {
        return false;
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return number != "-0" && (number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok());
    }
    // This function does not validate text that is no number.
    number.parse::<f64>().map_or(true, f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_a_parser_may_change_are_found_outside_strings_only() {
        for fine in [
            r#"{"a":[1,-2,2.50,1e3,-0.0,18446744073709551615,-9223372036854775808],"b-1e999":"-0 \" NaN"}"#,
            "x",
            "\"\\",
        ] {
            assert_eq!(unlike_python(fine), None, "{fine}");
        }
        for (text, found) in [
            ("[18446744073709551616]", "18446744073709551616"),
            ("[1,-9223372036854775809]", "-9223372036854775809"),
            ("{\"z\":-0}", "-0"),
            ("[1E400]", "1E400"),
            ("[-Infinity]", "-Infinity"),
            ("[NaN]", "NaN"),
        ] {
            assert_eq!(unlike_python(text), Some(found));
        }
    }
}
