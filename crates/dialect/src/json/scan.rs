//! The scanner of a JSON text.
//!
//! Each step works on bytes by hand because this runs for every request and every stream event.

use super::{
    error::{JsonError, MAX_DEPTH, MAX_NODES},
    raw::RawJson,
    special::{BLOCK, is_special, plain_bytes, special_bytes},
};

/// The error of a control character in a string.
const CONTROL: &str = "a control character in a string";

/// Bytes of a string that are read one by one before whole blocks are: most keys and words are
/// shorter, and end before a block would pay.
const SHORT_STRING: usize = 16;

/// Returns the bytes as text, or the offset of the first bad byte.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, usize> {
    // The fast check does not say where it fails.
    simdutf8::basic::from_utf8(bytes).map_err(|_| {
        std::str::from_utf8(bytes)
            .err()
            .map_or(0, |error| error.valid_up_to())
    })
}

/// Checks that `text` is one value with only space around it.
pub(crate) fn whole(text: &str) -> Result<RawJson<'_>, JsonError> {
    let mut scan = JsonScanner::new(text);
    scan.space();
    let value = scan.value()?;
    scan.end()?;
    Ok(value)
}

/// Returns the object in `text`, which may have only space around it.
pub(crate) fn object(text: &[u8]) -> Option<RawJson<'_>> {
    whole(utf8(text).ok()?)
        .ok()
        .filter(|whole| whole.as_str().starts_with('{'))
}

/// A position in a text. All cut offsets are at ASCII bytes, so cuts are at character boundaries.
pub(super) struct JsonScanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    pub(super) at: usize,
    /// Number of open containers around the value to read.
    pub(super) depth: u32,
    /// Whether a string had an escape that clients may write in another way.
    pub(super) odd_escapes: bool,
    /// Values and keys so far.
    pub(super) nodes: u32,
}

impl<'a> JsonScanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
            depth: 0,
            odd_escapes: false,
            nodes: 0,
        }
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(super) fn wrong(&self, what: &'static str) -> JsonError {
        let what = if self.at >= self.bytes.len() {
            "the text ends too early"
        } else {
            what
        };
        JsonError { at: self.at, what }
    }

    pub(super) fn count(&mut self) -> Result<(), JsonError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(JsonError {
                at: self.at,
                what: "more than 1048576 values",
            });
        }
        Ok(())
    }

    #[inline]
    pub(super) fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Returns the value that was read from this offset on.
    pub(super) fn read_since(&self, from: usize) -> RawJson<'a> {
        RawJson(&self.text[from..self.at])
    }

    pub(super) fn end(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(self.wrong("something follows the value"))
    }

    pub(super) fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return Err(self.wrong(what));
        }
        self.at += 1;
        Ok(())
    }

    pub(super) fn key(&mut self) -> Result<&'a str, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("expected a key in double quotes"));
        }
        self.count()?;
        let from = self.at;
        self.string()?;
        Ok(&self.text[from..self.at])
    }

    pub(super) fn colon(&mut self) -> Result<(), JsonError> {
        self.space();
        self.expect(b':', "expected a colon")?;
        self.space();
        Ok(())
    }

    /// Reads one value of any kind. The nesting is stored in the bits of one word: 1 is an object.
    pub(super) fn value(&mut self) -> Result<RawJson<'a>, JsonError> {
        let from = self.at;
        let outer = self.depth;
        let mut kinds: u128 = 0;
        loop {
            // A value starts here.
            self.count()?;
            match self.peek() {
                Some(b'{') => {
                    self.open()?;
                    if self.peek() == Some(b'}') {
                        self.at += 1;
                        self.depth -= 1;
                    } else {
                        kinds = (kinds << 1) | 1;
                        self.key()?;
                        self.colon()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.open()?;
                    if self.peek() == Some(b']') {
                        self.at += 1;
                        self.depth -= 1;
                    } else {
                        kinds <<= 1;
                        continue;
                    }
                }
                Some(b'"') => self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return Err(self.wrong("expected a value")),
            }
            // A value has ended here.
            self.close(outer, &mut kinds)?;
            if self.depth == outer {
                return Ok(self.read_since(from));
            }
        }
    }

    /// Closes the containers of a value that has ended, until another value must follow or the
    /// depth is `outer` again.
    #[inline]
    fn close(&mut self, outer: u32, kinds: &mut u128) -> Result<(), JsonError> {
        while self.depth != outer {
            self.space();
            let in_object = *kinds & 1 == 1;
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.space();
                    if in_object {
                        self.key()?;
                        self.colon()?;
                    }
                    return Ok(());
                }
                Some(b'}') if in_object => {}
                Some(b']') if !in_object => {}
                _ => return Err(self.wrong("expected a comma or the end of the container")),
            }
            self.at += 1;
            self.depth -= 1;
            *kinds >>= 1;
        }
        Ok(())
    }

    /// Opens the container at this place.
    pub(super) fn open(&mut self) -> Result<(), JsonError> {
        if self.depth >= MAX_DEPTH {
            return Err(JsonError {
                at: self.at,
                what: "nested deeper than 128",
            });
        }
        self.depth += 1;
        self.at += 1;
        self.space();
        Ok(())
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), JsonError> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.wrong("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.wrong("expected a digit")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        // "01" and "1x" fail in the caller: neither a comma nor an end follows.
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == from {
            Err(self.wrong("expected a digit"))
        } else {
            Ok(())
        }
    }

    /// Reads a string, starting at its opening quote.
    fn string(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        for _ in 0..SHORT_STRING {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(byte) if !is_special(byte) => self.at += 1,
                _ => break,
            }
        }
        while let Some(block) = self.bytes[self.at..].first_chunk::<BLOCK>() {
            if self.string_block(block)? {
                return Ok(());
            }
        }
        loop {
            self.at += plain_bytes(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                _ => return Err(self.wrong(CONTROL)),
            }
        }
    }

    /// Reads the part of a string in the next `block`, and an escape that begins there. Returns
    /// whether the string ends.
    ///
    /// One look at a block finds all its special bytes: text with many escapes is not searched
    /// again behind each of them.
    #[inline]
    fn string_block(&mut self, block: &[u8; BLOCK]) -> Result<bool, JsonError> {
        let from = self.at;
        let mut special = special_bytes(block);
        while special != 0 {
            let offset = special.trailing_zeros() as usize;
            self.at = from + offset;
            match block[offset] {
                b'"' => {
                    self.at += 1;
                    return Ok(true);
                }
                b'\\' => self.escape()?,
                _ => return Err(self.wrong(CONTROL)),
            }
            // The escape may end in a later block.
            let read = self.at - from;
            if read >= BLOCK {
                return Ok(false);
            }
            special &= u64::MAX << read;
        }
        self.at = from + BLOCK;
        Ok(false)
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'/' | b'b' | b'f') => {
                self.odd_escapes = true;
                self.at += 1;
            }
            Some(b'u') => {
                self.odd_escapes = true;
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.wrong("expected four hexadecimal digits"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.wrong("an unknown escape in a string")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule of strings, byte by byte: the length with both quotes, or the offset and the error.
    fn string_by_bytes(text: &[u8]) -> Result<usize, (usize, &'static str)> {
        let mut at = 1;
        let wrong = |at: usize, what| {
            let ended = at >= text.len();
            Err((
                at,
                if ended {
                    "the text ends too early"
                } else {
                    what
                },
            ))
        };
        loop {
            match text.get(at) {
                Some(b'"') => return Ok(at + 1),
                Some(b'\\') => at += 1,
                Some(0x20..) => {
                    at += 1;
                    continue;
                }
                _ => return wrong(at, CONTROL),
            }
            match text.get(at) {
                Some(b'u') => {
                    at += 1;
                    for _ in 0..4 {
                        match text.get(at) {
                            Some(digit) if digit.is_ascii_hexdigit() => at += 1,
                            _ => return wrong(at, "expected four hexadecimal digits"),
                        }
                    }
                }
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 1,
                _ => return wrong(at, "an unknown escape in a string"),
            }
        }
    }

    /// Pieces of strings, good and bad: the plain ones cover the length of a block.
    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => (0usize..70).prop_map(|length| "a".repeat(length)),
            2 => "[é😀\u{7f}/]{1,4}",
            4 => prop::sample::select(vec![
                r"\n", r"\\", r#"\""#, r"\/", r"\u00e9", r"\uD83d\uDe00", "\\\\\\\\", r"\b\f\r\t",
            ]).prop_map(str::to_owned),
            1 => prop::sample::select(vec![
                r"\x", r"\u12g4", r"\u1", "\\", "\"", "\n", "\0", "\u{1f}", "\\\n",
            ]).prop_map(str::to_owned),
        ]
    }

    proptest! {
        #[test]
        fn a_string_is_read_by_blocks_as_byte_by_byte(
            pieces in prop::collection::vec(piece(), 0..8),
            behind in prop::sample::select(vec!["", "\"", "\",", "\"]} and more than a block of text behind the string, which no rule reads"]),
        ) {
            let text = format!("\"{}{behind}", pieces.concat());
            let mut scan = JsonScanner::new(&text);
            let read = scan.string().map(|()| scan.at);
            prop_assert_eq!(
                read.map_err(|error| (error.at, error.what)),
                string_by_bytes(text.as_bytes())
            );
        }
    }
}
