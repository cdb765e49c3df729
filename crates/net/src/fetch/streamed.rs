//! A reply whose body is read piece by piece, for as long as it lasts.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::{FetchError, FetchExchange, HEAD_BYTES};
use crate::{WorkerUrl, dial};

/// A reply in progress. Dropping it closes the connection.
pub struct StreamedReply {
    /// The status, whatever it is.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    body: Incoming,
    /// The I/O of the connection, polled here and not in a task of its own; `None` at its end.
    connection: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    worker: String,
    path: String,
}

impl fmt::Debug for StreamedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamedReply")
            .field("status", &self.status)
            .field("worker", &self.worker)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Sends a GET for `path` below the base path of `url`, and returns the reply when its head is
/// there; `timeout` covers name resolution, connecting and the head, not the body.
pub async fn open(
    url: &WorkerUrl,
    path: &str,
    headers: &HeaderMap,
    timeout: Duration,
) -> Result<StreamedReply, FetchError> {
    let exchange = FetchExchange {
        url,
        path,
        timeout,
        max_bytes: 0,
    };
    tokio::time::timeout(timeout, exchange.open(headers))
        .await
        .unwrap_or_else(|_| Err(exchange.timed_out()))
}

impl FetchExchange<'_> {
    async fn open(&self, headers: &HeaderMap) -> Result<StreamedReply, FetchError> {
        let request = self.request(Method::GET, headers, None)?;
        let stream = dial(self.url, self.timeout)
            .await
            .map_err(|source| self.unreachable(source))?;
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| self.protocol(source))?;
        let mut connection: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            // Its error also reaches the reply.
            let _ = connection.await;
        });
        let mut connected = true;
        let mut reply = std::pin::pin!(sender.send_request(request));
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut reply => break reply.map_err(|source| self.protocol(source))?,
                () = &mut connection, if connected => connected = false,
            }
        };
        let (head, body) = reply.into_parts();
        Ok(StreamedReply {
            status: head.status,
            headers: head.headers,
            body,
            connection: connected.then_some(connection),
            worker: self.url.display_name(),
            path: self.path.to_owned(),
        })
    }
}

impl StreamedReply {
    /// Returns the next bytes of the body; `None`: it is complete. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The reply broke off.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let frame = match &mut self.connection {
                None => self.body.frame().await,
                Some(connection) => tokio::select! {
                    biased;
                    frame = self.body.frame() => frame,
                    () = connection => {
                        self.connection = None;
                        continue;
                    }
                },
            };
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|source| FetchError::Protocol {
                worker: self.worker.clone(),
                path: self.path.clone(),
                source,
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }
}
