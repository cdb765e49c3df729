//! Decodes and encodes JSON strings.

use std::{borrow::Cow, fmt::Write as _};

use memchr::memchr;

use super::special::plain_bytes;

/// Returns the value of a string (with its quotes, already checked). Halves of surrogate pairs
/// become U+FFFD.
pub(crate) fn decode(quoted: &str) -> Cow<'_, str> {
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(quoted);
    if memchr(b'\\', inner.as_bytes()).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let (character, after) = unescape(&rest[at + 1..]);
        text.push(character);
        rest = after;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// Reads the character after a backslash.
fn unescape(rest: &str) -> (char, &str) {
    let character = rest.as_bytes().first().copied();
    let after = rest.get(1..).unwrap_or("");
    match character {
        Some(b'b') => ('\u{8}', after),
        Some(b'f') => ('\u{c}', after),
        Some(b'n') => ('\n', after),
        Some(b'r') => ('\r', after),
        Some(b't') => ('\t', after),
        Some(b'u') => unicode(after),
        Some(plain @ (b'"' | b'\\' | b'/')) => (plain.into(), after),
        _ => (char::REPLACEMENT_CHARACTER, after),
    }
}

fn unicode(digits: &str) -> (char, &str) {
    let Some((first, after)) = hex4(digits) else {
        return (char::REPLACEMENT_CHARACTER, "");
    };
    if let Some(character) = char::from_u32(first) {
        return (character, after);
    }
    let second = after.strip_prefix("\\u").and_then(hex4);
    match second {
        Some((second @ 0xDC00..=0xDFFF, after)) if first < 0xDC00 => {
            let character = char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00));
            (character.unwrap_or(char::REPLACEMENT_CHARACTER), after)
        }
        _ => (char::REPLACEMENT_CHARACTER, after),
    }
}

fn hex4(text: &str) -> Option<(u32, &str)> {
    Some((
        u32::from_str_radix(text.get(..4)?, 16).ok()?,
        text.get(4..)?,
    ))
}

/// Appends `text` as a JSON string.
pub(crate) fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    loop {
        // Every character that needs an escape is ASCII, so both cuts are between characters.
        let (plain, special) = rest.split_at(plain_bytes(rest.as_bytes()));
        out.push_str(plain);
        let Some(byte) = special.bytes().next() else {
            break;
        };
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                let _ = write!(out, "\\u{control:04x}");
            }
        }
        rest = &special[1..];
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(
            decode(r#""a\n\t\"\\\/\b\f\r\u00e9\ud83d\ude00z""#),
            "a\n\t\"\\/\u{8}\u{c}\ré😀z"
        );
        assert!(matches!(decode(r#""plain""#), Cow::Borrowed("plain")));
    }

    #[test]
    fn an_encoded_string_escapes_only_what_json_requires() {
        let written = |text: &str| {
            let mut out = String::new();
            write_string(&mut out, text);
            out
        };
        assert_eq!(written(""), r#""""#);
        assert_eq!(
            written("\"\\\n\r\t\u{8}\0\u{1f}"),
            r#""\"\\\n\r\t\u0008\u0000\u001f""#
        );
        assert_eq!(
            written("é😀 longer than a word\né\u{7f}/"),
            "\"é😀 longer than a word\\né\u{7f}/\""
        );
    }

    #[test]
    fn lone_surrogates_are_replaced_and_nothing_else_changes() {
        assert_eq!(decode(r#""\ud83d!""#), "\u{fffd}!");
        assert_eq!(decode(r#""\ude00!""#), "\u{fffd}!");
        assert_eq!(decode(r#""\ud83d\u0041""#), "\u{fffd}A");
        assert_eq!(decode(r#""\ud83d\ud83d\ude00""#), "\u{fffd}😀");
    }
}
