//! Connections that leave HTTP after an exchange: the client's, and the worker's.

use std::io;

use http::Extensions;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use crate::upstream::UpstreamConnection;

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
        upgraded(self.0).await
    }
}

/// A worker's connection that leaves HTTP with its reply of 101. Dropping it closes the connection.
#[derive(Debug)]
pub struct WorkerUpgrade {
    upgrade: OnUpgrade,
    /// Its driver ends by itself when it has passed the socket on.
    _connection: UpstreamConnection,
}

impl WorkerUpgrade {
    pub(crate) fn new(upgrade: OnUpgrade, connection: UpstreamConnection) -> Self {
        Self {
            upgrade,
            _connection: connection,
        }
    }

    /// Returns the bytes after the reply.
    pub(crate) async fn stream(self) -> io::Result<TokioIo<Upgraded>> {
        upgraded(self.upgrade).await
    }
}

async fn upgraded(upgrade: OnUpgrade) -> io::Result<TokioIo<Upgraded>> {
    upgrade.await.map(TokioIo::new).map_err(io::Error::other)
}
