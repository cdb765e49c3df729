//! A connected byte stream over any transport.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::client::TlsStream;

use crate::{memory::MemoryStream, tls::TlsAccept};

/// A TCP connection (without Nagle's delay) or a unix socket, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// A connection of a simulation.
    Memory(MemoryStream),
    /// A client-side encrypted stream over one of them.
    Tls(Box<TlsStream<Stream>>),
    /// A server-side stream whose handshake the client begins.
    Accepting(Box<TlsAccept>),
}

impl Stream {
    /// Lets the system find out that a peer is gone without a word: after 30 s of silence it is
    /// asked every 10 s, and the connection ends after three questions without an answer.
    ///
    /// # Errors
    ///
    /// The system refuses the option.
    pub fn keep_alive(&self) -> io::Result<()> {
        let Self::Tcp(stream) = self else {
            // Other streams end with their peer's process, or keep the connection beneath alive.
            return Ok(());
        };
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
        sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
        Ok(())
    }

    /// Returns the peer's address; `None` for a unix socket or a connection that is already closed.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
            Self::Memory(stream) => Some(stream.peer_addr()),
            Self::Tls(stream) => stream.get_ref().0.peer_addr(),
            Self::Accepting(stream) => stream.inner().and_then(Self::peer_addr),
        }
    }

    /// Returns whether the bytes pass through a unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Memory(_) => false,
            Self::Unix(_) => true,
            Self::Tls(stream) => stream.get_ref().0.is_unix(),
            Self::Accepting(stream) => stream.inner().is_some_and(Self::is_unix),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Memory(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
            Self::Accepting(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Memory(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
            Self::Accepting(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Memory(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
            Self::Accepting(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Memory(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Accepting(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Memory(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            Self::Accepting(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Memory(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            Self::Accepting(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
