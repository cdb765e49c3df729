//! Decodes the body of a worker's reply: of an announced length, in chunks, or up to the end of the
//! connection.

use bytes::Bytes;

/// Most bytes of all chunk extensions, and of all trailer fields, of a reply.
const MAX_UNUSED_BYTES: usize = 16 * 1024;

/// Most bytes of one chunk's size, with the zeros before it and the blanks behind it.
const MAX_SIZE_BYTES: usize = 64;

/// The body's bytes of one read. Mostly they are one piece, which is copied once, to its own length.
#[derive(Debug)]
pub(super) struct BodyPieces<'a> {
    first: &'a [u8],
    /// All pieces, if there are several.
    joined: Vec<u8>,
    /// Most bytes that they have together.
    most: usize,
}

impl<'a> BodyPieces<'a> {
    pub(super) fn of_at_most(bytes: usize) -> Self {
        Self {
            first: &[],
            joined: Vec::new(),
            most: bytes,
        }
    }

    fn push(&mut self, piece: &'a [u8]) {
        if self.first.is_empty() {
            self.first = piece;
            return;
        }
        if self.joined.is_empty() {
            self.joined.reserve_exact(self.most);
            self.joined.extend_from_slice(self.first);
        }
        self.joined.extend_from_slice(piece);
    }

    pub(super) fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() {
            Bytes::copy_from_slice(self.first)
        } else {
            self.joined.into()
        }
    }
}

/// The state of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplyDecoder(Framing);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Framing {
    /// The bytes that are left.
    Length(u64),
    Chunked {
        state: ChunkState,
        /// Bytes of extensions and trailer fields so far.
        unused: usize,
        /// Bytes of the current chunk's size so far.
        size: usize,
    },
    UntilClose {
        ended: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Before the first digit of a size.
    Start,
    Size(u64),
    /// White space after a size.
    SizeEnd(u64),
    Extension(u64),
    SizeLineFeed(u64),
    /// The bytes of the chunk that are left.
    Data(u64),
    DataReturn,
    DataLineFeed,
    /// At the start of a trailer line, or of the empty line that ends the body.
    TrailerStart,
    Trailer,
    TrailerLineFeed,
    EndLineFeed,
    End,
}

/// A body that is not validly framed, or that ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FramingFault(pub(super) &'static str);

impl ReplyDecoder {
    pub(super) fn length(bytes: u64) -> Self {
        Self(Framing::Length(bytes))
    }

    pub(super) fn chunked() -> Self {
        Self(Framing::Chunked {
            state: ChunkState::Start,
            unused: 0,
            size: 0,
        })
    }

    pub(super) fn until_close() -> Self {
        Self(Framing::UntilClose { ended: false })
    }

    /// Returns whether the body is read to its end.
    pub(super) fn is_end(&self) -> bool {
        matches!(
            self.0,
            Framing::Length(0)
                | Framing::Chunked {
                    state: ChunkState::End,
                    ..
                }
                | Framing::UntilClose { ended: true }
        )
    }

    /// Returns the number of bytes that are left, where it is announced.
    pub(super) fn announced(&self) -> Option<u64> {
        match self.0 {
            Framing::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Adds the body's bytes of `input` to `body`; returns the length of what belongs to the reply.
    /// What was added is valid also if the rest is not.
    pub(super) fn decode<'a>(
        &mut self,
        input: &'a [u8],
        body: &mut BodyPieces<'a>,
    ) -> Result<usize, FramingFault> {
        match &mut self.0 {
            Framing::Length(left) => {
                let taken =
                    usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                body.push(&input[..taken]);
                *left -= taken as u64;
                Ok(taken)
            }
            Framing::UntilClose { .. } => {
                body.push(input);
                Ok(input.len())
            }
            Framing::Chunked {
                state,
                unused,
                size,
            } => {
                let mut at = 0;
                while at < input.len() && *state != ChunkState::End {
                    if let ChunkState::Data(left) = state {
                        let rest = &input[at..];
                        let taken =
                            usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
                        body.push(&rest[..taken]);
                        at += taken;
                        *left -= taken as u64;
                        if *left == 0 {
                            *state = ChunkState::DataReturn;
                        }
                        continue;
                    }
                    *state = state.after(input[at])?;
                    at += 1;
                    if matches!(state, ChunkState::Size(_) | ChunkState::SizeEnd(_)) {
                        *size += 1;
                        if *size > MAX_SIZE_BYTES {
                            return Err(BAD_LINE);
                        }
                    } else {
                        *size = 0;
                    }
                    if matches!(state, ChunkState::Extension(_) | ChunkState::Trailer) {
                        *unused += 1;
                        if *unused > MAX_UNUSED_BYTES {
                            return Err(FramingFault(
                                "the reply's chunk extensions and trailer fields are too long",
                            ));
                        }
                    }
                }
                Ok(at)
            }
        }
    }

    /// Notes that the worker closed its side.
    pub(super) fn close(&mut self) -> Result<(), FramingFault> {
        if let Framing::UntilClose { ended } = &mut self.0 {
            *ended = true;
        }
        if self.is_end() {
            Ok(())
        } else {
            Err(FramingFault("the connection closed before the reply's end"))
        }
    }
}

impl ChunkState {
    /// Returns the state after a byte of the framing.
    fn after(self, byte: u8) -> Result<Self, FramingFault> {
        Ok(match (self, byte) {
            (Self::Start, _) => Self::Size(digit(byte)?),
            (Self::Size(size) | Self::SizeEnd(size), b'\t' | b' ') => Self::SizeEnd(size),
            (Self::Size(size) | Self::SizeEnd(size), b';') => Self::Extension(size),
            (Self::Size(size) | Self::SizeEnd(size) | Self::Extension(size), b'\r') => {
                Self::SizeLineFeed(size)
            }
            (Self::Size(size), _) => {
                let digit = digit(byte)?;
                let longer = size.checked_mul(16).map(|size| size + digit);
                Self::Size(longer.ok_or(FramingFault("a chunk's size is too large"))?)
            }
            // A line feed here is read as the end of the line by some, and not by others.
            (Self::Extension(_) | Self::Trailer, b'\n') => return Err(BAD_LINE),
            (Self::Extension(size), _) => Self::Extension(size),
            (Self::SizeLineFeed(0), b'\n') => Self::TrailerStart,
            (Self::SizeLineFeed(size), b'\n') => Self::Data(size),
            (Self::DataReturn, b'\r') => Self::DataLineFeed,
            (Self::DataLineFeed, b'\n') => Self::Start,
            (Self::TrailerStart, b'\r') => Self::EndLineFeed,
            (Self::Trailer, b'\r') => Self::TrailerLineFeed,
            (Self::TrailerStart | Self::Trailer, _) => Self::Trailer,
            (Self::TrailerLineFeed, b'\n') => Self::TrailerStart,
            (Self::EndLineFeed, b'\n') => Self::End,
            _ => return Err(BAD_LINE),
        })
    }
}

const BAD_LINE: FramingFault = FramingFault("a chunk of the reply is not validly framed");

/// Reads a hexadecimal digit.
fn digit(byte: u8) -> Result<u64, FramingFault> {
    let digit = char::from(byte).to_digit(16);
    digit.map(u64::from).ok_or(BAD_LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `input` in pieces of `step` bytes; returns the body and the bytes behind it.
    fn decode(
        mut decoder: ReplyDecoder,
        input: &[u8],
        step: usize,
    ) -> Result<(Vec<u8>, usize), FramingFault> {
        let (mut body, mut behind) = (Vec::new(), 0);
        for piece in input.chunks(step) {
            let mut pieces = BodyPieces::of_at_most(piece.len());
            behind += piece.len() - decoder.decode(piece, &mut pieces)?;
            body.extend_from_slice(&pieces.into_bytes());
        }
        decoder.close()?;
        Ok((body, behind))
    }

    #[test]
    fn a_body_is_the_same_wherever_its_bytes_are_cut() {
        let chunked =
            b"5\r\nhello\r\nA ;name=\"v\"\r\n0123456789\r\n000\r\nx-sum: 1\r\nx: 2\r\n\r\nnext";
        for step in 1..=chunked.len() {
            let decoded = decode(ReplyDecoder::chunked(), chunked, step);
            assert_eq!(decoded, Ok((b"hello0123456789".to_vec(), 4)), "{step}");
            let decoded = decode(ReplyDecoder::length(5), b"hellonext", step);
            assert_eq!(decoded, Ok((b"hello".to_vec(), 4)), "{step}");
            let decoded = decode(ReplyDecoder::until_close(), b"hello", step);
            assert_eq!(decoded, Ok((b"hello".to_vec(), 0)), "{step}");
        }
    }

    #[test]
    fn a_body_that_ends_early_is_no_whole_body() {
        let chunked = b"5\r\nhello\r\n0\r\n\r\n";
        for end in 0..chunked.len() {
            let decoded = decode(ReplyDecoder::chunked(), &chunked[..end], 100);
            assert!(decoded.is_err(), "{end}");
        }
        assert!(decode(ReplyDecoder::length(6), b"hello", 100).is_err());
    }

    #[test]
    fn chunks_that_other_readers_could_take_for_something_else_are_refused() {
        for framing in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+5\r\nhello\r\n",
            "0x5\r\nhello\r\n",
            "5\nhello\r\n",
            "5\r\nhello0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\rhello\r\n",
            " 5\r\nhello\r\n",
            "5 5\r\nhello\r\n",
            "5;a\n\r\nhello\r\n",
            "0\r\nx\n\r\n",
            "0\r\n\r\r\n",
            "10000000000000000\r\n",
            "0000000000000000000000000000000000000000000000000000000000000000005\r\nhello\r\n",
            "5                                                                 \r\nhello\r\n",
            "ffffffffffffffff0\r\n",
        ] {
            let decoded = decode(ReplyDecoder::chunked(), framing.as_bytes(), 100);
            assert!(decoded.is_err_and(|fault| fault != ended()), "{framing:?}");
        }
    }

    /// The fault of a body that is cut.
    fn ended() -> FramingFault {
        ReplyDecoder::length(1).close().expect_err("cut")
    }

    #[test]
    fn extensions_and_trailers_have_a_limit() {
        let long = "a".repeat(MAX_UNUSED_BYTES + 1);
        for framing in [
            format!("5;{long}"),
            format!("0\r\n{long}"),
            "1;a\r\n \r\n".repeat(MAX_UNUSED_BYTES),
        ] {
            let decoded = decode(ReplyDecoder::chunked(), framing.as_bytes(), 4096);
            assert!(
                decoded.is_err_and(|fault| fault != ended()),
                "{:.9}",
                framing
            );
        }
    }
}
