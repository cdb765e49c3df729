//! One request and its reply.

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};

use crate::Load;

const MAX_HEADERS: usize = 64;
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most bytes of one read of a body, as in a client with a buffer of this size.
const READ_BYTES: u64 = 16 * 1024;
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// Whether the connection takes another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug)]
struct ReplyHead {
    status: u16,
    bytes: usize,
    length: Option<usize>,
    chunked: bool,
    closes: bool,
}

#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    load: &'a Load,
    stream: &'a mut TcpStream,
    /// The moment that the request is timed from.
    from: Instant,
    last_read: Option<Instant>,
    events: EventCounter,
    end: BodyEnd,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(load: &'a Load, stream: &'a mut TcpStream, from: Instant) -> Self {
        Self {
            load,
            stream,
            from,
            last_read: None,
            events: EventCounter::default(),
            end: BodyEnd::default(),
        }
    }

    /// Sends the request and reads the whole reply; `buffer` is only there to be used again.
    pub(crate) async fn run(mut self, request: &[u8], buffer: &mut Vec<u8>) -> Result<Reuse> {
        self.stream.write_all(request).await.context("write")?;
        buffer.clear();
        let head = self.read_head(buffer).await?;
        self.load.statistics.borrow_mut().add_status(head.status);
        buffer.drain(..head.bytes);
        loop {
            self.record(buffer);
            if self.end.is_reached(buffer, &head) {
                break;
            }
            buffer.clear();
            let mut piece = (&mut *self.stream).take(READ_BYTES);
            if piece.read_buf(buffer).await.context("read body")? == 0 {
                if head.chunked || head.length.is_some() {
                    bail!("the connection was closed in the body");
                }
                break;
            }
        }
        let mut statistics = self.load.statistics.borrow_mut();
        statistics.reply_us.push(microseconds(self.from.elapsed()));
        statistics.ok += u64::from(head.status == 200);
        let framed = head.chunked || head.length.is_some();
        Ok(if framed && !head.closes {
            Reuse::Yes
        } else {
            Reuse::No
        })
    }

    async fn read_head(&mut self, buffer: &mut Vec<u8>) -> Result<ReplyHead> {
        loop {
            if self.stream.read_buf(buffer).await.context("read head")? == 0 {
                bail!("the connection was closed before the head");
            }
            if let Some(head) = parse_head(buffer)? {
                return Ok(head);
            }
            ensure!(
                buffer.len() <= MAX_HEAD_BYTES,
                "the head has more than {MAX_HEAD_BYTES} bytes"
            );
        }
    }

    /// Counts a piece of the body.
    fn record(&mut self, piece: &[u8]) {
        if piece.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut statistics = self.load.statistics.borrow_mut();
        match self.last_read.replace(now) {
            None => statistics.first_byte_us.push(microseconds(now - self.from)),
            Some(last) if self.load.gaps => statistics.gap_us.push(microseconds(now - last)),
            Some(_) => {}
        }
        if self.load.streamed {
            statistics.events += self.events.count(piece);
            statistics.ended_streams += u64::from(memmem::find(piece, b"[DONE]").is_some());
        }
    }
}

fn microseconds(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn parse_head(buffer: &[u8]) -> Result<Option<ReplyHead>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut reply = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(bytes) = reply.parse(buffer).context("parse head")? else {
        return Ok(None);
    };
    let mut head = ReplyHead {
        status: reply.code.unwrap_or(0),
        bytes,
        length: None,
        chunked: false,
        closes: false,
    };
    for header in reply.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = std::str::from_utf8(header.value)?;
            head.length = Some(digits.parse().context("parse Content-Length")?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            head.chunked = true;
        } else if header.name.eq_ignore_ascii_case("connection") {
            head.closes = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    Ok(Some(head))
}

/// Counts the blank lines that end events, also where one is cut in two.
#[derive(Debug, Default)]
struct EventCounter {
    last_byte: u8,
}

impl EventCounter {
    fn count(&mut self, piece: &[u8]) -> u64 {
        let cut = self.last_byte == b'\n' && piece.first() == Some(&b'\n');
        self.last_byte = piece.last().copied().unwrap_or(self.last_byte);
        memmem::find_iter(piece, b"\n\n").count() as u64 + u64::from(cut)
    }
}

/// Finds the end of a body by its length or by its last chunk.
#[derive(Debug, Default)]
struct BodyEnd {
    bytes: usize,
    /// The last bytes of the body, at most as many as the last chunk has.
    tail: Vec<u8>,
}

impl BodyEnd {
    fn is_reached(&mut self, piece: &[u8], head: &ReplyHead) -> bool {
        self.bytes += piece.len();
        if !head.chunked {
            return head.length.is_some_and(|length| self.bytes >= length);
        }
        let from = piece.len().saturating_sub(LAST_CHUNK.len());
        self.tail.extend_from_slice(&piece[from..]);
        let old = self.tail.len().saturating_sub(LAST_CHUNK.len());
        self.tail.drain(..old);
        // An empty body has no line before its last chunk.
        self.tail == LAST_CHUNK || (self.bytes == 5 && self.tail == LAST_CHUNK[2..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_wherever_the_bytes_are_cut() {
        let stream = b"data: 1\n\ndata: 2\n\n";
        for cut in 0..stream.len() {
            let mut counter = EventCounter::default();
            let (first, second) = stream.split_at(cut);
            assert_eq!(counter.count(first) + counter.count(second), 2);
        }
    }

    #[test]
    fn a_chunked_body_ends_with_its_last_chunk_wherever_it_is_cut() {
        let head = ReplyHead {
            status: 200,
            bytes: 0,
            length: None,
            chunked: true,
            closes: false,
        };
        for body in [&b"3\r\nabc\r\n0\r\n\r\n"[..], b"0\r\n\r\n"] {
            for cut in 0..body.len() {
                let mut end = BodyEnd::default();
                assert!(!end.is_reached(&body[..cut], &head));
                assert!(end.is_reached(&body[cut..], &head));
            }
        }
    }
}
