//! Connections that leave HTTP after an exchange: the client's, and the worker's.

use std::io::{self, Cursor};

use bytes::Bytes;
use http::Extensions;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

/// A client's connection that leaves HTTP once its request is answered with 101.
#[derive(Clone, Debug)]
pub struct ClientUpgrade(OnUpgrade);

impl ClientUpgrade {
    /// Takes it from the extensions of a request; `None`: the request asks for no other protocol.
    pub fn take(extensions: &mut Extensions) -> Option<Self> {
        extensions.remove().map(Self)
    }

    /// Waits until the reply is sent, and returns the bytes after it.
    pub(crate) async fn stream(self) -> io::Result<TokioIo<Upgraded>> {
        self.0.await.map(TokioIo::new).map_err(io::Error::other)
    }
}

/// A worker's connection that leaves HTTP with its reply of 101. Dropping it closes the connection.
#[derive(Debug)]
pub struct WorkerUpgrade {
    stream: net::Stream,
    /// Bytes that came with the reply.
    received: Bytes,
}

impl WorkerUpgrade {
    pub(crate) fn new(stream: net::Stream, received: Bytes) -> Self {
        Self { stream, received }
    }

    /// Returns the bytes after the reply.
    pub(crate) fn stream(self) -> impl AsyncRead + AsyncWrite + Unpin {
        let (read, write) = tokio::io::split(self.stream);
        tokio::io::join(Cursor::new(self.received).chain(read), write)
    }
}
