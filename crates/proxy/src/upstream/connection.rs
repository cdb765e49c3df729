//! One HTTP/1 connection to a worker.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

/// Most buffered bytes of a reply whose client does not read. A reply's head must fit, too.
const READ_BUFFER: usize = 64 * 1024;

/// An open connection. Dropping it closes the socket at once, in any state: this is how the engine
/// notices a client that hung up. Only [`super::UpstreamBody::release`] keeps one alive.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl UpstreamConnection {
    /// Performs the HTTP/1 handshake on a fresh stream.
    pub(super) async fn handshake(stream: net::Stream) -> hyper::Result<Self> {
        let (sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await?;
        // Owned by this value: aborted on drop, and ended by itself when the worker closes.
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to a worker ended");
            }
        })
        .abort_handle();
        Ok(Self { sender, driver })
    }

    /// Returns the request side.
    pub(super) fn sender(&mut self) -> &mut SendRequest<Full<Bytes>> {
        &mut self.sender
    }

    /// Returns whether another request can be sent now.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }

    /// Waits until the previous reply is read to its end.
    pub(super) async fn ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }
}

impl Drop for UpstreamConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
