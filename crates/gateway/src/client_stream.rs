//! A client's connection with two deadlines that the HTTP layer does not have.
//!
//! A request head must be complete within a time from its first byte (an idle connection may rest longer), and a client
//! that takes nothing of what is written is given up after a while: otherwise its reply would hold the engine, the load
//! and the connection for ever, since a reply is not asked for more while nothing of it can be written.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use net::Stalling;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use crate::request::ReplyBody;

/// The connection. The HTTP layer reads and writes through it.
#[derive(Debug)]
pub(crate) struct ClientStream {
    inner: Stalling<net::Stream>,
    head_timeout: Duration,
    /// A request is being answered: what is read now belongs to its body or to nobody yet.
    answering: Arc<AtomicBool>,
    /// Runs from the first byte of a head.
    head: Option<Pin<Box<Sleep>>>,
}

/// Says where in the exchange a connection is.
#[derive(Clone, Debug)]
pub(crate) struct Exchange(Arc<AtomicBool>);

impl Exchange {
    /// A head is complete: its request is being answered until the returned guard is dropped.
    pub(crate) fn begin(&self) -> Answering {
        self.0.store(true, Ordering::Release);
        Answering(Arc::clone(&self.0))
    }
}

/// While it lives, a request is being answered.
#[derive(Debug)]
pub(crate) struct Answering(Arc<AtomicBool>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl ClientStream {
    pub(crate) fn new(inner: net::Stream, head_timeout: Duration, write_stall: Duration) -> (Self, Exchange) {
        let answering = Arc::new(AtomicBool::new(false));
        let exchange = Exchange(Arc::clone(&answering));
        let inner = Stalling::new(inner, write_stall);
        (Self { inner, head_timeout, answering, head: None }, exchange)
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if stream.answering.load(Ordering::Acquire) {
            stream.head = None;
            return Pin::new(&mut stream.inner).poll_read(cx, buf);
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut stream.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            let limit = stream.head_timeout;
            stream.head.get_or_insert_with(|| Box::pin(sleep(limit)));
        }
        if let Some(head) = &mut stream.head
            && head.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request head came too slowly")));
        }
        result
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// A reply's body that keeps its connection marked as answering until it is out.
#[derive(Debug)]
pub(crate) struct AnsweringBody {
    body: ReplyBody,
    _answering: Answering,
}

impl AnsweringBody {
    pub(crate) fn new(body: ReplyBody, answering: Answering) -> Self {
        Self { body, _answering: answering }
    }
}

impl Body for AnsweringBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
