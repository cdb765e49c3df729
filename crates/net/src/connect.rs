//! Opens connections within a time limit.

use std::{io, time::Duration};

use crate::{Address, Destinations, Stream, TrustRoots, WorkerUrl};

/// Time limit for a handshake with a server that accepted the connection.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// Connects to `address`, name resolution included, within `timeout`. TCP connections send at once
/// (no Nagle delay).
///
/// A name's addresses come from the cache ([`crate::NAME_REFRESH`]); they are tried one after the
/// other, and the error is the last one's. A fault of this process is a [`crate::LocalFault`]. A
/// time-out is [`io::ErrorKind::TimedOut`], a refused connection
/// [`io::ErrorKind::ConnectionRefused`] (for a unix socket also [`io::ErrorKind::NotFound`]).
pub async fn connect(address: &Address, timeout: Duration) -> io::Result<Stream> {
    Destinations::Any.connect(address, timeout).await
}

/// Connects to a worker, encrypted if its URL requires that; a handshake has 3 s beyond `timeout`.
///
/// An untrusted certificate is [`io::ErrorKind::InvalidData`].
pub async fn dial(url: &WorkerUrl, timeout: Duration) -> io::Result<Stream> {
    let stream = url.destinations().connect(&url.address(), timeout).await?;
    let Some(host) = url.host().filter(|_| url.is_tls()) else {
        return Ok(stream);
    };
    // Large and seldom needed, so it is boxed and not part of every request's future.
    let encrypted = Box::pin(async {
        match url.trust() {
            Some(trust) => trust.encrypt(stream, host).await,
            // A caller with many connections supplies the trust roots itself.
            None => {
                TrustRoots::system_now()
                    .await
                    .map_err(io::Error::other)?
                    .encrypt(stream, host)
                    .await
            }
        }
    });
    let late = || {
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no handshake with {url} within {HANDSHAKE:?}"),
        )
    };
    tokio::time::timeout(HANDSHAKE, encrypted)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// Applies `timeout` to a connect, and maps its error for `address`.
pub(crate) async fn within(
    address: &Address,
    timeout: Duration,
    open: impl Future<Output = io::Result<Stream>>,
) -> io::Result<Stream> {
    match tokio::time::timeout(timeout, open).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no connection to {address} within {timeout:?}"),
        )),
    }
}
