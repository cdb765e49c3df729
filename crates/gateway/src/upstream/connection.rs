//! One HTTP/1 connection to a worker.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

/// Most of a reply that is in memory when its client does not read on, in bytes. A reply's head must fit in, too.
const READ_BUFFER: usize = 64 * 1024;

/// An open connection. Dropping it closes the socket at once, whatever it is doing: that is how a client that hangs up
/// reaches the engine. Only [`super::Pools::give_back`] keeps one alive.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl UpstreamConnection {
    /// Speaks HTTP/1 on a fresh stream.
    pub(crate) async fn handshake(stream: net::Stream) -> hyper::Result<Self> {
        let (sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await?;
        // Owned by this value: aborted when it is dropped, and ending by itself when the worker closes.
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to a worker ended");
            }
        })
        .abort_handle();
        Ok(Self { sender, driver })
    }

    /// The request side.
    pub(crate) fn sender(&mut self) -> &mut SendRequest<Full<Bytes>> {
        &mut self.sender
    }

    /// Whether another request can be sent right now.
    pub(crate) fn is_ready(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }

    /// Waits until the reply before is read to its end.
    pub(crate) async fn ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }
}

impl Drop for UpstreamConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
