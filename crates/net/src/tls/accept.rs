//! The server side of an encrypted connection.
//!
//! An accept loop must not wait for handshakes, so the connection's own task shakes hands: at its
//! first read, within its own time limit.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use tokio_rustls::{Accept, server::TlsStream};

use crate::Stream;

/// Time limit of a handshake. A slower client occupies a connection that others could use.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection before, in or after its handshake.
pub struct TlsAccept(AcceptState);

enum AcceptState {
    Handshake(Box<(Accept<Stream>, Pin<Box<Sleep>>)>),
    Ready(Box<TlsStream<Stream>>),
    Failed,
}

impl TlsAccept {
    pub(super) fn new(accept: Accept<Stream>) -> Self {
        Self(AcceptState::Handshake(Box::new((
            accept,
            Box::pin(tokio::time::sleep(HANDSHAKE)),
        ))))
    }

    /// Returns the connection below; `None` once it is over.
    pub(crate) fn inner(&self) -> Option<&Stream> {
        match &self.0 {
            AcceptState::Handshake(shaking) => shaking.0.get_ref(),
            AcceptState::Ready(stream) => Some(stream.get_ref().0),
            AcceptState::Failed => None,
        }
    }

    fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pin<&mut TlsStream<Stream>>>> {
        if let AcceptState::Handshake(shaking) = &mut self.0 {
            let (accept, time) = &mut **shaking;
            let handshake = match (Pin::new(accept).poll(cx), time.as_mut().poll(cx)) {
                (Poll::Ready(handshake), _) => handshake,
                (Poll::Pending, Poll::Ready(())) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the client did not shake hands within {HANDSHAKE:?}"),
                )),
                (Poll::Pending, Poll::Pending) => return Poll::Pending,
            };
            match handshake {
                Ok(stream) => self.0 = AcceptState::Ready(Box::new(stream)),
                Err(error) => {
                    self.0 = AcceptState::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(match &mut self.0 {
            AcceptState::Ready(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl AsyncRead for TlsAccept {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_ready(cx))?.poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsAccept {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.get_mut().poll_ready(cx))?.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.get_mut().poll_ready(cx))?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Before the handshake no data was written, and a flush must not wait for it.
        match &mut self.get_mut().0 {
            AcceptState::Ready(stream) => Pin::new(stream).poll_flush(cx),
            AcceptState::Handshake(_) | AcceptState::Failed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            AcceptState::Ready(stream) => Pin::new(stream).poll_shutdown(cx),
            AcceptState::Handshake(_) | AcceptState::Failed => Poll::Ready(Ok(())),
        }
    }
}

impl fmt::Debug for TlsAccept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            AcceptState::Handshake(_) => "Accepting(in its handshake)",
            AcceptState::Ready(_) => "Accepting(encrypted)",
            AcceptState::Failed => "Accepting(failed)",
        })
    }
}
