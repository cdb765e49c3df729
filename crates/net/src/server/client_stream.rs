//! A client's connection with two deadlines that the HTTP layer does not have, and a check of the
//! requests' framing that it does not make.
//!
//! A request head must be complete within a time limit: the first one of a connection from the
//! connection's start, each later one from its first byte, since an idle connection may rest
//! longer. And a client that reads nothing for a while is dropped: the HTTP layer does not poll a
//! reply while it cannot write, so the reply would hold the engine, the load and the connection for
//! ever.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{
    ConnectionSlot, ExchangeTracker,
    frame_meter::{FrameMeter, PREFACE},
    request_framing::{FramingFault, RequestFraming},
};
use crate::{StallTimeout, Stream};

/// A GOAWAY frame with the code ENHANCE_YOUR_CALM, for a client that floods its connection. It does
/// not say that any stream was left undone, so that the client repeats no request for it.
const GO_AWAY: &[u8] = &[
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11,
];

/// Bytes behind a refused head that are discarded at once.
const DISCARDED: usize = 4096;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1: one request at a time.
    Http1,
    /// HTTP/2: several at once.
    Http2,
}

/// The connection, between socket and HTTP layer.
#[derive(Debug)]
pub struct ClientStream {
    inner: StallTimeout<Stream>,
    head_timeout: Duration,
    exchange: ExchangeTracker,
    /// Number of complete heads at the last read.
    heads: u64,
    /// Runs while a head is awaited or incomplete.
    head: Option<Pin<Box<Sleep>>>,
    /// Bytes that were read to find the version, at most as many as the preface has.
    peeked: Vec<u8>,
    /// The error behind these bytes, of the next read.
    failed: Option<io::Error>,
    /// Present while the HTTP layer reads HTTP/1.
    framing: Option<RequestFraming>,
    /// Present on an HTTP/2 connection.
    frames: Option<Box<FrameMeter>>,
    /// Some bytes may not be sent, so that a frame could be cut here.
    unflushed: bool,
}

impl ClientStream {
    /// Wraps a newly accepted connection. A head may take `head_timeout`; a client that takes
    /// nothing for `write_stall` is dropped.
    pub fn new(
        inner: Stream,
        slot: ConnectionSlot,
        head_timeout: Duration,
        write_stall: Duration,
    ) -> (Self, ExchangeTracker) {
        let exchange = ExchangeTracker::new(slot);
        let stream = Self {
            inner: StallTimeout::new(inner, write_stall),
            head_timeout,
            exchange: exchange.clone(),
            heads: 0,
            head: Some(Box::pin(sleep(head_timeout))),
            peeked: Vec::new(),
            failed: None,
            framing: Some(RequestFraming::default()),
            frames: None,
            unflushed: false,
        };
        (stream, exchange)
    }

    /// Reads the first bytes, to find which version the client speaks. Called at most once, before
    /// anything else is read; the HTTP layer gets these bytes too.
    ///
    /// # Errors
    /// The connection broke, or the client sent nothing within the time for a head.
    pub async fn http_version(&mut self) -> io::Result<HttpVersion> {
        let mut first = [0; PREFACE.len()];
        let mut length = 0;
        // The bytes are followed when the HTTP layer gets them.
        let framing = self.framing.take();
        while length < first.len() && first[..length] == PREFACE[..length] {
            let read = self.read(&mut first[length..]).await?;
            if read == 0 {
                break;
            }
            length += read;
        }
        self.peeked = first[..length].to_vec();
        if first != *PREFACE {
            self.framing = framing;
            return Ok(HttpVersion::Http1);
        }
        self.frames = Some(Box::new(FrameMeter::new(Instant::now())));
        self.exchange.set_multiplexed();
        Ok(HttpVersion::Http2)
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        if self.peeked.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let length = self.peeked.len().min(buf.remaining());
        buf.put_slice(&self.peeked[..length]);
        self.peeked.drain(..length);
        if self.peeked.is_empty() {
            self.peeked = Vec::new();
            // What follows joins these bytes: a second read would make the HTTP layer double its
            // buffer.
            if let Poll::Ready(Err(error)) = Pin::new(&mut self.inner).poll_read(cx, buf) {
                self.failed = Some(error);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Counts the frames of new bytes; ends the connection of a client that sends too many.
    fn count_frames(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> io::Result<()> {
        let Some(frames) = &mut self.frames else {
            return Ok(());
        };
        if frames.record_received(bytes, Instant::now()).is_ok() {
            return Ok(());
        }
        if !self.unflushed {
            // As far as the socket takes it at once: the connection is over.
            let _ = Pin::new(&mut self.inner).poll_write(cx, GO_AWAY);
            let _ = Pin::new(&mut self.inner).poll_flush(cx);
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the client sends too many frames that carry nothing",
        ))
    }

    /// Follows the framing of new bytes, the last ones of `buf`; takes back those behind a fault.
    fn follow_framing(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let Some(framing) = &mut self.framing else {
            return Ok(());
        };
        let passed = framing.follow(&buf.filled()[before..]);
        match framing.fault() {
            None => return Ok(()),
            Some(FramingFault::Head(head, error)) => self.exchange.refuse_head(head, error),
            Some(FramingFault::Body(error)) => {
                let error = io::Error::new(io::ErrorKind::InvalidData, error);
                if passed == 0 {
                    return Err(error);
                }
                // The HTTP layer gets the head and the chunks before it, so that it can reply.
                self.failed = Some(error);
            }
        }
        buf.set_filled(before + passed);
        Ok(())
    }

    /// Reads nothing more into the HTTP layer after a refused head. What the client still sends is
    /// discarded: bytes left in the socket would make the system reset the connection, and the
    /// client lose its reply.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [0; DISCARDED];
        loop {
            let mut buf = ReadBuf::new(&mut bytes);
            ready!(self.poll_bytes(cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Returns whether the next bytes begin a head, so that its time limit applies.
    fn expects_head(&self) -> bool {
        match self.frames {
            // Frames of other kinds arrive between requests.
            Some(_) => self.heads == 0,
            None => !self.exchange.is_answering(),
        }
    }

    fn poll_head_timeout(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(head) = &mut self.head
            && head.as_mut().poll(cx).is_ready()
        {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the request head came too slowly",
            ));
        }
        Ok(())
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let heads = stream.exchange.heads();
        if heads != stream.heads {
            stream.heads = heads;
            stream.head = None;
        }
        if let Some(framing) = &stream.framing {
            if stream.exchange.is_upgraded() {
                if framing.fault().is_some() {
                    // The client did not wait for the reply, and bytes of it are gone.
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                stream.framing = None;
            } else if framing.is_refused_head() {
                return stream.poll_discard(cx);
            }
        }
        let before = buf.filled().len();
        let expects_head = stream.expects_head();
        let result = stream.poll_bytes(cx, buf);
        let new = &buf.filled()[before..];
        let any = !new.is_empty();
        if any {
            stream.count_frames(cx, new)?;
            stream.follow_framing(buf, before)?;
        }
        // Otherwise these bytes belong to the request's body, or to no request yet.
        if expects_head {
            if any {
                let limit = stream.head_timeout;
                stream.head.get_or_insert_with(|| Box::pin(sleep(limit)));
            }
            stream.poll_head_timeout(cx)?;
        }
        result
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = Pin::new(&mut stream.inner).poll_write(cx, bytes);
        stream.record_written(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = Pin::new(&mut stream.inner).poll_write_vectored(cx, slices);
        stream.record_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        ready!(Pin::new(&mut stream.inner).poll_flush(cx))?;
        stream.unflushed = false;
        // The HTTP layer flushes after its last write: nothing of the reply is left here.
        stream.exchange.record_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

impl ClientStream {
    fn record_written(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.unflushed = true;
        if let (Some(frames), Poll::Ready(Ok(bytes))) = (&mut self.frames, &written) {
            frames.record_sent(*bytes);
        }
        written
    }
}
