//! Any text as one part of a subject, or as a key of a bucket.

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_64;

/// Longest readable part of the text, bytes.
const LONGEST: usize = 96;

/// Returns the text as one part of a subject or key. Whatever NATS does not allow there is written
/// as `=` and two hexadecimal digits; a long text is cut and ends with its hash.
///
/// ```
/// assert_eq!(nats_client::subject_token("10.0.0.7:8000"), "10=2E0=2E0=2E7=3A8000");
/// ```
pub fn subject_token(text: &str) -> String {
    let mut token = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            token.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(token, "={byte:02X}");
        }
    }
    if token.len() > LONGEST || token.is_empty() {
        token.truncate(LONGEST);
        let _ = write!(token, "={:016x}", xxh3_64(text.as_bytes()));
    }
    token
}
