//! Opening a connection within a time.

use std::{io, time::Duration};

use crate::{Address, Destinations, Stream, TrustRoots, WorkerUrl};

/// Time for a handshake with a server that took the connection.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// Connects to `address`, name resolution included, within `timeout`. TCP connections send at once (no Nagle delay).
///
/// A name's addresses are those last known ([`crate::NAME_REFRESH`]); they are tried one after the other, and the error is the
/// last one's. One that lies with this process is a [`crate::LocalFault`]. Running out of
/// time is [`io::ErrorKind::TimedOut`], nobody listening [`io::ErrorKind::ConnectionRefused`] (for a unix socket also
/// [`io::ErrorKind::NotFound`]).
pub async fn connect(address: &Address, timeout: Duration) -> io::Result<Stream> {
    Destinations::Any.connect(address, timeout).await
}

/// Connects to a worker, whose URL says whether that is encrypted; a handshake has 3 s beyond `timeout`.
///
/// A certificate that is not believed is [`io::ErrorKind::InvalidData`].
pub async fn dial(url: &WorkerUrl, timeout: Duration) -> io::Result<Stream> {
    let stream = url.destinations().connect(&url.address(), timeout).await?;
    let Some(host) = url.host().filter(|_| url.is_tls()) else {
        return Ok(stream);
    };
    // Large, and seldom needed: it must not lie in the future of every request.
    let encrypted = Box::pin(async {
        match url.trust() {
            Some(trust) => trust.encrypt(stream, host).await,
            // Who asks often brings the trust along.
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

/// What becomes of opening a connection to `address`, within `timeout`.
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
