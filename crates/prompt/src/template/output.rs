//! The output of a render, compared with an earlier text while it is written.

use std::{io, mem, sync::Arc};

use minijinja::{Error, ErrorKind};

use super::resume::{self, LoopRecord};

/// What a render wrote.
#[derive(Debug, Default)]
pub(crate) struct RenderedText {
    /// How many pieces of the earlier text it begins with.
    pub(crate) known_pieces: usize,
    /// The rest.
    pub(crate) rest: String,
    /// The loop over the messages, for the next turn.
    pub(crate) loop_record: Option<LoopRecord>,
}

/// Takes a render's output, up to a limit. What equals the beginning of `known` is compared and not
/// stored.
pub(super) struct OutputWriter<'k> {
    known: &'k [Arc<str>],
    known_pieces: usize,
    /// Bytes that equal the beginning of the next piece.
    matched: usize,
    /// Whether the output left the earlier text.
    differs: bool,
    rest: Vec<u8>,
    /// Bytes of the output so far.
    position: usize,
    remaining: usize,
}

impl<'k> OutputWriter<'k> {
    pub(super) fn new(known: &'k [Arc<str>], limit: usize) -> Self {
        Self {
            known,
            known_pieces: 0,
            matched: 0,
            differs: false,
            rest: Vec::new(),
            position: 0,
            remaining: limit,
        }
    }

    /// Compares `bytes` with the earlier text, and returns those behind its end or behind the first
    /// difference.
    fn compare<'b>(&mut self, mut bytes: &'b [u8]) -> &'b [u8] {
        while !self.differs && !bytes.is_empty() {
            let Some(piece) = self.known.get(self.known_pieces) else {
                self.differs = true;
                break;
            };
            let expected = &piece.as_bytes()[self.matched..];
            let (compared, left) = bytes.split_at(bytes.len().min(expected.len()));
            if compared == &expected[..compared.len()] {
                self.matched += compared.len();
                bytes = left;
                self.pass_piece(piece.len());
            } else {
                self.leave();
            }
        }
        bytes
    }

    /// Stores from here on, beginning with the part of a piece that was equal.
    fn leave(&mut self) {
        self.differs = true;
        if let Some(piece) = self.known.get(self.known_pieces) {
            let matched = mem::take(&mut self.matched);
            self.rest.extend_from_slice(&piece.as_bytes()[..matched]);
        }
    }

    /// Goes on behind text that was not rendered, since it is that of the earlier one.
    fn follow_jump(&mut self) -> io::Result<()> {
        let Some(to) = resume::take_jump() else {
            return Ok(());
        };
        let mut left = to - self.position;
        self.take(left)?;
        self.position = to;
        while let Some(piece) = self.known.get(self.known_pieces)
            && left > 0
        {
            let step = left.min(piece.len() - self.matched);
            left -= step;
            self.matched += step;
            self.pass_piece(piece.len());
        }
        Ok(())
    }

    /// Takes bytes of the limit.
    fn take(&mut self, bytes: usize) -> io::Result<()> {
        let left = self.remaining.checked_sub(bytes);
        self.remaining = left.ok_or_else(|| io::Error::other("the template puts out too much"))?;
        Ok(())
    }

    /// Goes on to the next piece behind the end of one.
    fn pass_piece(&mut self, len: usize) {
        if self.matched == len {
            self.known_pieces += 1;
            self.matched = 0;
        }
    }

    /// Ends the output.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        self.follow_jump().map_err(|error| {
            Error::new(ErrorKind::WriteFailure, "the text has no place").with_source(error)
        })
    }

    /// Returns the output; `Err`: it is not UTF-8.
    pub(super) fn finish(
        mut self,
        loop_record: Option<LoopRecord>,
    ) -> Result<RenderedText, std::string::FromUtf8Error> {
        if !self.differs {
            self.leave();
        }
        Ok(RenderedText {
            known_pieces: self.known_pieces,
            rest: String::from_utf8(self.rest)?,
            loop_record,
        })
    }
}

impl io::Write for OutputWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.follow_jump()?;
        self.take(bytes.len())?;
        let new = self.compare(bytes);
        self.rest.extend_from_slice(new);
        self.position += bytes.len();
        resume::advance(bytes.len(), self.differs);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_what_an_earlier_text_has_not_is_stored() {
        let known: Vec<Arc<str>> = ["ab<e>", "cé<e>", "d<e>"].map(Arc::from).into();
        for (text, pieces, rest) in [
            ("", 0, ""),
            ("ab", 0, "ab"),
            ("ab<e>", 1, ""),
            ("ab<e>cé<e>d<e>new", 3, "new"),
            ("ab<e>cè<e>d<e>", 1, "cè<e>d<e>"),
            ("ab<e>cé<e>d<f>", 2, "d<f>"),
            ("xab<e>", 0, "xab<e>"),
        ] {
            for chunk in 1..=text.len().max(1) {
                let mut writer = OutputWriter::new(&known, 100);
                for part in text.as_bytes().chunks(chunk) {
                    writer.write_all(part).expect("it is short");
                }
                let found = writer.finish(None).expect("it is a text");
                let found = (found.known_pieces, found.rest.as_str());
                assert_eq!(found, (pieces, rest), "{text} by {chunk}");
            }
        }
    }

    #[test]
    fn the_limit_counts_known_bytes_too() {
        let known = [Arc::from("abc")];
        let mut writer = OutputWriter::new(&known, 4);
        assert!(writer.write_all(b"abc").is_ok());
        assert!(writer.write_all(b"de").is_err());
    }
}
