//! Removes the insignificant space from JSON.

use super::special::plain_bytes;

/// Appends `text` without insignificant space. It checks nothing: text that is not JSON loses space
/// too.
pub(crate) fn compact(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    loop {
        let outside = rest
            .iter()
            .position(|byte| matches!(byte, b'"' | b' ' | b'\n' | b'\r' | b'\t'));
        let (plain, special) = rest.split_at(outside.unwrap_or(rest.len()));
        out.extend_from_slice(plain);
        let Some(byte) = special.first() else { break };
        let (string, after) = special.split_at(if *byte == b'"' {
            string_bytes(special)
        } else {
            0
        });
        out.extend_from_slice(string);
        rest = if string.is_empty() {
            &special[1..]
        } else {
            after
        };
    }
}

/// Returns the length of the string at the start of `text`, with its quotes.
fn string_bytes(text: &[u8]) -> usize {
    let mut at = 1;
    loop {
        at += plain_bytes(text.get(at..).unwrap_or_default());
        match text.get(at) {
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => return text.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_is_removed_except_in_strings() {
        let compacted = |text: &str| {
            let mut out = Vec::new();
            compact(text, &mut out);
            String::from_utf8(out).expect("only complete characters are kept or removed")
        };
        assert_eq!(
            compacted("\r\n{ \"a b\" :\t[1, -2.50e+7 ,\"\\\" \\\\\", \"é \"]} "),
            r#"{"a b":[1,-2.50e+7,"\" \\","é "]}"#
        );
        for no_json in ["\"", "\"\\", "\"a\n", " \\ \" ", ""] {
            assert!(compacted(no_json).len() <= no_json.len());
        }
    }
}
