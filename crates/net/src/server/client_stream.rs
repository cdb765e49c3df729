//! A client's connection with two deadlines that the HTTP layer does not have.
//!
//! A request head must be complete within a time limit: the first one of a connection from the
//! connection's start, each later one from its first byte, since an idle connection may rest
//! longer. And a client that reads nothing for a while is dropped: the HTTP layer does not poll a
//! reply while it cannot write, so the reply would hold the engine, the load and the connection for
//! ever.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};

use super::ConnectionSlot;
use crate::{StallTimeout, Stream};

/// No request is in progress, and nothing is left to write.
const IDLE: u8 = 0;
/// A head is complete, its reply is not.
const ANSWERING: u8 = 1;
/// A reply is complete, and some of it may still have to be written.
const FLUSHING: u8 = 2;

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
}

/// Tracker of the request and reply phases of a connection.
#[derive(Clone, Debug)]
pub struct ExchangeTracker(Arc<ClientState>);

#[derive(Debug)]
struct ClientState {
    slot: ConnectionSlot,
    phase: AtomicU8,
    /// Number of complete heads.
    heads: AtomicU64,
}

impl ExchangeTracker {
    /// Begins a request after its complete head: it is in progress until the returned guard is
    /// dropped. Waits while the client's address has its full share of requests in progress.
    pub async fn begin(&self) -> ExchangeGuard {
        let state = Arc::clone(&self.0);
        state.phase.store(ANSWERING, Ordering::Release);
        state.heads.fetch_add(1, Ordering::Release);
        let turn = state.slot.acquire_request_slot().await;
        state.slot.set_busy();
        ExchangeGuard { state, _turn: turn }
    }

    /// Returns the connection's slot.
    pub fn slot(&self) -> &ConnectionSlot {
        &self.0.slot
    }
}

/// Guard of a request in progress.
#[derive(Debug)]
pub struct ExchangeGuard {
    state: Arc<ClientState>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Drop for ExchangeGuard {
    fn drop(&mut self) {
        self.state.phase.store(FLUSHING, Ordering::Release);
    }
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
        let exchange = ExchangeTracker(Arc::new(ClientState {
            slot,
            phase: AtomicU8::new(IDLE),
            heads: AtomicU64::new(0),
        }));
        let stream = Self {
            inner: StallTimeout::new(inner, write_stall),
            head_timeout,
            exchange: exchange.clone(),
            heads: 0,
            head: Some(Box::pin(sleep(head_timeout))),
        };
        (stream, exchange)
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let state = &stream.exchange.0;
        let heads = state.heads.load(Ordering::Acquire);
        if heads != stream.heads {
            stream.heads = heads;
            stream.head = None;
        }
        if state.phase.load(Ordering::Acquire) == ANSWERING {
            // These bytes belong to the request's body, or to no request yet.
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
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the request head came too slowly",
            )));
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
        let stream = self.get_mut();
        ready!(Pin::new(&mut stream.inner).poll_flush(cx))?;
        let state = &stream.exchange.0;
        // The HTTP layer flushes after its last write: nothing of the reply is left here.
        if state
            .phase
            .compare_exchange(FLUSHING, IDLE, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            state.slot.set_idle();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// Returns a reply's body that keeps its request in progress until it is sent; `None`: another part
/// does.
pub fn in_progress<B: Body>(
    body: B,
    answering: impl Into<Option<ExchangeGuard>>,
) -> impl Body<Data = B::Data, Error = B::Error> {
    let answering = answering.into();
    // The closure owns the guard, so that both are dropped together.
    body.map_err(move |error| {
        let _ = &answering;
        error
    })
}
