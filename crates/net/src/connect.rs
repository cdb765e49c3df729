//! Opening a connection within a time.

use std::{io, time::Duration};

use tokio::net::{TcpStream, UnixStream};

use crate::{Address, Stream};

/// Connects to `address`, name resolution included, within `timeout`. TCP connections send at once (no Nagle delay).
///
/// A name with several addresses is tried one address after the other; the error is the last one's. Running out of
/// time is [`io::ErrorKind::TimedOut`], nobody listening [`io::ErrorKind::ConnectionRefused`] (for a unix socket also
/// [`io::ErrorKind::NotFound`]).
pub async fn connect(address: &Address, timeout: Duration) -> io::Result<Stream> {
    within(address, timeout, open(address)).await
}

/// What becomes of opening a connection to `address`, within `timeout`.
pub(crate) async fn within(
    address: &Address,
    timeout: Duration,
    open: impl Future<Output = io::Result<Stream>>,
) -> io::Result<Stream> {
    match tokio::time::timeout(timeout, open).await {
        Ok(result) => result,
        Err(_) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {address} within {timeout:?}")))
        }
    }
}

async fn open(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
        Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
    }
}
