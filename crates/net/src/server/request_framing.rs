//! Follows the framing of a client's bytes in HTTP/1, and finds requests whose end two servers could
//! see in different places (RFC 9112, 6.3 and 11.2).
//!
//! The HTTP layer parses the same bytes, but it accepts a length beside an encoding, several of
//! them, and lines without a carriage return, and hides the fields from its caller. A proxy in front
//! that goes by the other field would see another request in the rest of such a one, or none.
//!
//! Not here: what the HTTP layer refuses itself (names, values, folded lines, versions), and limits
//! of size and time.
//!
//! **Invariant**: no byte behind a refused head, nor behind a refused line of a chunked body, is
//! passed on.

use memchr::memchr;

/// Bytes of a line that are kept where it comes in several reads: more than a valid length or
/// encoding needs.
const LINE_START: usize = 64;
/// Digits of the largest length that every integer type of 64 bits has room for.
const LENGTH_DIGITS: usize = 19;
/// Hexadecimal digits of a chunk's size.
const CHUNK_DIGITS: usize = 16;

/// The reason why a request's framing is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// A length beside an encoding.
    #[error("the request has both Content-Length and Transfer-Encoding: send one of them")]
    LengthAndEncoding,
    /// Two lengths, equal or not.
    #[error("the request has more than one Content-Length: send one")]
    RepeatedLength,
    /// A length with a sign, a list, spaces, or too many digits.
    #[error("Content-Length is not one number of at most 19 digits: send the body's bytes")]
    InvalidLength,
    /// Two encodings.
    #[error("the request has more than one Transfer-Encoding: send one, chunked")]
    RepeatedEncoding,
    /// An encoding other than `chunked`.
    #[error("Transfer-Encoding is not exactly `chunked`: send that or a Content-Length")]
    UnknownEncoding,
    /// A line of the head that ends in a bare line feed.
    #[error("a line of the request head ends without a carriage return: end each line with CRLF")]
    BareLineFeed,
    /// A size, an end or a trailer of a chunk that is none.
    #[error("a chunk of the request body is not framed as RFC 9112 says")]
    InvalidChunk,
}

/// Where a request's framing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramingFault {
    /// In the head with this number, from 1.
    Head(u64, FramingError),
    /// In a body.
    Body(FramingError),
}

/// The framing of the requests of one connection.
#[derive(Debug, Default)]
pub(super) struct RequestFraming {
    position: Position,
    /// Number of complete heads.
    heads: u64,
    /// The beginning of a line whose end is not here yet.
    partial: PartialLine,
    fault: Option<FramingFault>,
}

#[derive(Debug)]
enum Position {
    Head(HeadFields),
    Body {
        left: u64,
    },
    ChunkSize,
    ChunkData {
        left: u64,
    },
    ChunkEnd,
    Trailers,
    /// Behind a fault.
    Refused,
}

impl Default for Position {
    fn default() -> Self {
        Self::Head(HeadFields::default())
    }
}

/// The framing fields of a head so far.
#[derive(Clone, Copy, Debug, Default)]
struct HeadFields {
    /// Whether the request line is read.
    started: bool,
    length: Option<u64>,
    chunked: bool,
    error: Option<FramingError>,
}

impl RequestFraming {
    /// Follows the next bytes. Returns how many of them, from the first, may be passed on; all of
    /// them unless there is a fault.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.position {
                Position::Refused => break,
                Position::Body { left } | Position::ChunkData { left } => {
                    let here =
                        usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
                    *left -= here as u64;
                    at += here;
                    if *left == 0 {
                        self.end_data();
                    }
                }
                _ => {
                    let Some(end) = memchr(b'\n', rest) else {
                        self.partial.push(rest);
                        return bytes.len();
                    };
                    let mut partial = std::mem::take(&mut self.partial);
                    self.end_line(&Line::new(&mut partial, &rest[..end]));
                    at += end + 1;
                }
            }
        }
        at
    }

    /// Returns the fault, if there is one. One in a head is known before the head's last byte is
    /// passed on.
    pub(super) fn fault(&self) -> Option<FramingFault> {
        self.fault
    }

    /// Returns whether a refused head is complete, so that nothing more is passed on.
    pub(super) fn is_refused_head(&self) -> bool {
        matches!(self.position, Position::Refused)
            && matches!(self.fault, Some(FramingFault::Head(..)))
    }

    fn end_data(&mut self) {
        self.position = match self.position {
            Position::ChunkData { .. } => Position::ChunkEnd,
            _ => Position::default(),
        };
    }

    fn end_line(&mut self, line: &Line<'_>) {
        match &mut self.position {
            Position::Head(fields) => {
                let ended = fields.read(line);
                if let Some(error) = fields.error
                    && self.fault.is_none()
                {
                    self.fault = Some(FramingFault::Head(self.heads + 1, error));
                }
                if ended {
                    self.end_head();
                }
            }
            Position::ChunkSize => match line.chunk_size() {
                Some(0) => self.position = Position::Trailers,
                Some(left) => self.position = Position::ChunkData { left },
                None => self.refuse_body(),
            },
            Position::ChunkEnd if line.is_end() => self.position = Position::ChunkSize,
            Position::Trailers if line.is_end() => self.position = Position::default(),
            Position::Trailers if line.crlf => {}
            _ => self.refuse_body(),
        }
    }

    fn end_head(&mut self) {
        let Position::Head(fields) = &self.position else {
            return;
        };
        self.heads += 1;
        self.position = match *fields {
            HeadFields { error: Some(_), .. } => Position::Refused,
            HeadFields { chunked: true, .. } => Position::ChunkSize,
            HeadFields { length, .. } => match length.unwrap_or_default() {
                0 => Position::default(),
                left => Position::Body { left },
            },
        };
    }

    fn refuse_body(&mut self) {
        self.position = Position::Refused;
        self.fault = Some(FramingFault::Body(FramingError::InvalidChunk));
    }
}

impl HeadFields {
    /// Reads the next line; returns whether it ends the head.
    fn read(&mut self, line: &Line<'_>) -> bool {
        if !line.crlf {
            self.refuse(FramingError::BareLineFeed);
        }
        if line.text.is_empty() {
            // Empty lines before a request are skipped (RFC 9112, 2.2).
            return self.started;
        }
        if !std::mem::replace(&mut self.started, true) {
            return false;
        }
        let Some(colon) = memchr(b':', line.text) else {
            return false;
        };
        let (name, value) = (&line.text[..colon], &line.text[colon + 1..]);
        // Any other white space is read differently by different servers.
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if name.eq_ignore_ascii_case(b"content-length") {
            self.read_length(value);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.read_encoding(value);
        }
        false
    }

    fn read_length(&mut self, value: &[u8]) {
        let digits =
            (1..=LENGTH_DIGITS).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
        let length = std::str::from_utf8(value)
            .ok()
            .filter(|_| digits)
            .and_then(|text| text.parse().ok());
        match (length, self.length) {
            (None, _) => self.refuse(FramingError::InvalidLength),
            (Some(_), Some(_)) => self.refuse(FramingError::RepeatedLength),
            (Some(_), None) if self.chunked => self.refuse(FramingError::LengthAndEncoding),
            (Some(_), None) => self.length = length,
        }
    }

    fn read_encoding(&mut self, value: &[u8]) {
        if !value.eq_ignore_ascii_case(b"chunked") {
            self.refuse(FramingError::UnknownEncoding);
        } else if self.chunked {
            self.refuse(FramingError::RepeatedEncoding);
        } else if self.length.is_some() {
            self.refuse(FramingError::LengthAndEncoding);
        }
        self.chunked = true;
    }

    /// The first reason is told.
    fn refuse(&mut self, error: FramingError) {
        self.error.get_or_insert(error);
    }
}

/// The beginning of a line that comes in several reads.
#[derive(Debug, Default)]
struct PartialLine {
    /// At most [`LINE_START`] bytes.
    start: Vec<u8>,
    /// Whether bytes are left out.
    cut: bool,
    /// Whether the last byte is a carriage return.
    cr: bool,
}

impl PartialLine {
    fn push(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        self.cr = *last == b'\r';
        let kept = bytes.len().min(LINE_START - self.start.len());
        self.start.extend_from_slice(&bytes[..kept]);
        self.cut |= kept < bytes.len();
    }
}

/// A line without its end.
struct Line<'a> {
    /// Its first bytes at least.
    text: &'a [u8],
    /// Whether it ended in CRLF.
    crlf: bool,
}

impl<'a> Line<'a> {
    /// Joins the beginning of a line with its end, which stands before the line feed.
    fn new(partial: &'a mut PartialLine, end: &'a [u8]) -> Self {
        if partial.start.is_empty() {
            let text = end.strip_suffix(b"\r");
            return Self {
                text: text.unwrap_or(end),
                crlf: text.is_some(),
            };
        }
        partial.push(end);
        let text = &partial.start[..];
        let whole = partial.cr && !partial.cut;
        Self {
            text: if whole { &text[..text.len() - 1] } else { text },
            crlf: partial.cr,
        }
    }

    fn is_end(&self) -> bool {
        self.crlf && self.text.is_empty()
    }

    /// Reads the line as the size of a chunk, with or without an extension.
    fn chunk_size(&self) -> Option<u64> {
        let digits = self.text.iter().take_while(|byte| byte.is_ascii_hexdigit());
        let (size, extension) = self.text.split_at(digits.count());
        let fine = self.crlf
            && size.len() <= CHUNK_DIGITS
            && extension.first().is_none_or(|byte| b"; \t".contains(byte));
        let text = std::str::from_utf8(size).ok().filter(|_| fine)?;
        u64::from_str_radix(text, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    /// The outcome of these bytes in reads of `size` bytes each.
    fn follow(bytes: &str, size: usize) -> (usize, Option<FramingFault>) {
        let mut framing = RequestFraming::default();
        let mut passed = 0;
        for read in bytes.as_bytes().chunks(size) {
            let more = framing.follow(read);
            passed += more;
            if more < read.len() {
                break;
            }
        }
        (passed, framing.fault())
    }

    fn post(fields: &str, body: &str) -> String {
        format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n{body}")
    }

    #[test]
    fn valid_requests_pass_whole_in_reads_of_any_size() {
        let requests = [
            GET.to_owned(),
            post("Content-Length: 5\r\n", "hello"),
            post("content-length:0\r\n", ""),
            format!("\r\n\r\n{GET}"),
            post(
                "Transfer-Encoding: Chunked\r\n",
                "5;a=\"b\"\r\nhello\r\n1 \r\n\n\r\n000\r\nx-trailer: 1\r\n\r\n",
            ),
            post(&format!("x-long: {}\r\n", "a".repeat(200)), ""),
            post("content-length: 12\r\n", "\r\n\r\nGET / \n\n"),
        ];
        let all = requests.concat();
        for size in [1, 2, 3, 7, 64, all.len()] {
            assert_eq!(follow(&all, size), (all.len(), None), "{size}");
        }
    }

    #[test]
    #[contract("S19", "S20")]
    fn an_ambiguous_head_is_refused_and_nothing_behind_it_passes() {
        for (fields, error) in [
            (
                "content-length: 5\r\ntransfer-encoding: chunked\r\n",
                FramingError::LengthAndEncoding,
            ),
            (
                "TRANSFER-ENCODING: chunked\r\nCONTENT-LENGTH: 0\r\n",
                FramingError::LengthAndEncoding,
            ),
            (
                "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
                FramingError::RepeatedEncoding,
            ),
            (
                "transfer-encoding: gzip, chunked\r\n",
                FramingError::UnknownEncoding,
            ),
            (
                "transfer-encoding: chunked, identity\r\n",
                FramingError::UnknownEncoding,
            ),
            (
                "transfer-encoding: chunked;q=1\r\n",
                FramingError::UnknownEncoding,
            ),
            (
                "transfer-encoding: xchunked\r\n",
                FramingError::UnknownEncoding,
            ),
            (
                "transfer-encoding:\tchunked\r\n",
                FramingError::UnknownEncoding,
            ),
            (
                "transfer-encoding: chunked \r\n",
                FramingError::UnknownEncoding,
            ),
            ("transfer-encoding:\r\n", FramingError::UnknownEncoding),
            (
                "content-length: 5\r\ncontent-length: 5\r\n",
                FramingError::RepeatedLength,
            ),
            (
                "content-length: 5\r\ncontent-length: 6\r\n",
                FramingError::RepeatedLength,
            ),
            ("content-length: 5, 5\r\n", FramingError::InvalidLength),
            ("content-length: +5\r\n", FramingError::InvalidLength),
            ("content-length: -5\r\n", FramingError::InvalidLength),
            ("content-length: 0x5\r\n", FramingError::InvalidLength),
            ("content-length:  5 \r\n", FramingError::InvalidLength),
            ("content-length: 5 5\r\n", FramingError::InvalidLength),
            ("content-length:\r\n", FramingError::InvalidLength),
            (
                "content-length: 00000000000000000005\r\n",
                FramingError::InvalidLength,
            ),
            (
                "content-length: 18446744073709551616\r\n",
                FramingError::InvalidLength,
            ),
            ("x-a: 1\n", FramingError::BareLineFeed),
        ] {
            let refused = post(fields, "");
            let all = format!("{GET}{refused}{GET}");
            for size in [1, 5, all.len()] {
                let expected = FramingFault::Head(2, error);
                let passed = GET.len() + refused.len();
                assert_eq!(
                    follow(&all, size),
                    (passed, Some(expected)),
                    "{fields:?} {size}"
                );
            }
        }
    }

    #[test]
    #[contract("S25")]
    fn a_chunk_that_is_not_framed_by_crlf_and_digits_is_refused_with_the_rest() {
        for chunk in [
            "5\nhello\r\n",
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "0x5\r\nhello\r\n",
            "5,\r\nhello\r\n",
            "00000000000000005\r\nhello\r\n",
            "5;a\nb\r\nhello\r\n",
            "5\r\nhelloX\r\n",
            "5\r\nhello\n",
            "0\r\nx: 1\n\r\n",
        ] {
            let all = post(
                "transfer-encoding: chunked\r\n",
                &format!("{chunk}0\r\n\r\n{GET}"),
            );
            for size in [1, 5, all.len()] {
                let (passed, fault) = follow(&all, size);
                let expected = FramingFault::Body(FramingError::InvalidChunk);
                assert_eq!(fault, Some(expected), "{chunk:?} {size}");
                assert!(passed < all.len() - GET.len(), "{chunk:?} {size}");
            }
        }
    }
}
