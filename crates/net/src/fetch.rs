//! A small HTTP/1 client for probes and artefacts: one request, one connection, everything capped.
//!
//! It follows no redirect (a reply always comes from this worker, never from another host), reuses
//! no connection, and requests no compression. The time limit covers name resolution, connecting,
//! the head and the whole body.

use std::{io, pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode,
    header::{ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HOST},
};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;

mod streamed;

pub use streamed::{StreamedReply, open};

use crate::{Stream, WorkerUrl, dial};

/// Size limit of a reply head, in bytes.
const HEAD_BYTES: usize = 64 * 1024;

/// A complete reply.
#[derive(Clone, Debug)]
pub struct FetchedReply {
    /// The status, whatever it is.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body, never larger than the given limit.
    pub body: Bytes,
}

/// The reason why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No connection.
    #[error("{worker} cannot be reached ({source}): check that the engine runs and listens there")]
    Connect {
        /// The worker's address.
        worker: String,
        /// The system's error.
        source: io::Error,
    },
    /// The time limit passed before the whole reply arrived.
    #[error("{worker} did not answer {path} within {limit:?}")]
    TimedOut {
        /// The worker's address.
        worker: String,
        /// The requested path.
        path: String,
        /// The time limit.
        limit: Duration,
    },
    /// The reply is larger than allowed.
    #[error("{worker} answered {path} with more than {limit} bytes")]
    TooLarge {
        /// The worker's address.
        worker: String,
        /// The requested path.
        path: String,
        /// The size limit.
        limit: usize,
    },
    /// The reply is not HTTP/1, or it broke off.
    #[error("{worker} did not answer {path} with a whole http reply ({source})")]
    Protocol {
        /// The worker's address.
        worker: String,
        /// The requested path.
        path: String,
        /// The protocol error.
        source: hyper::Error,
    },
    /// The path or a header cannot be sent.
    #[error("{path:?} cannot be asked for ({source}): use an absolute path in plain ascii")]
    Request {
        /// The requested path.
        path: String,
        /// The reason.
        source: http::Error,
    },
}

impl FetchError {
    /// Returns whether the port refused the connection: the sure sign that the process has ended.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Connect { source, .. }
            if matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
    }
}

/// Sends a GET for `path` below the worker's base path.
pub async fn get(
    url: &WorkerUrl,
    path: &str,
    headers: &HeaderMap,
    timeout: Duration,
    max_bytes: usize,
) -> Result<FetchedReply, FetchError> {
    FetchExchange {
        url,
        path,
        timeout,
        max_bytes,
    }
    .run(Method::GET, headers, None)
    .await
}

/// Sends a HEAD for `path` below the worker's base path.
pub async fn head(
    url: &WorkerUrl,
    path: &str,
    headers: &HeaderMap,
    timeout: Duration,
) -> Result<FetchedReply, FetchError> {
    FetchExchange {
        url,
        path,
        timeout,
        max_bytes: 0,
    }
    .run(Method::HEAD, headers, None)
    .await
}

/// Sends a POST to `path` below the worker's base path. The body's type is `application/json`
/// unless `headers` give another.
pub async fn post(
    url: &WorkerUrl,
    path: &str,
    headers: &HeaderMap,
    body: Option<Bytes>,
    timeout: Duration,
    max_bytes: usize,
) -> Result<FetchedReply, FetchError> {
    FetchExchange {
        url,
        path,
        timeout,
        max_bytes,
    }
    .run(Method::POST, headers, body)
    .await
}

struct FetchExchange<'a> {
    url: &'a WorkerUrl,
    path: &'a str,
    timeout: Duration,
    max_bytes: usize,
}

impl FetchExchange<'_> {
    async fn run(
        &self,
        method: Method,
        headers: &HeaderMap,
        body: Option<Bytes>,
    ) -> Result<FetchedReply, FetchError> {
        let request = self.request(method, headers, body)?;
        let whole = async {
            let stream = dial(self.url, self.timeout)
                .await
                .map_err(|source| self.unreachable(source))?;
            self.exchange(stream, request).await
        };
        tokio::time::timeout(self.timeout, whole)
            .await
            .unwrap_or_else(|_| Err(self.timed_out()))
    }

    fn request(
        &self,
        method: Method,
        headers: &HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>, FetchError> {
        let has_body = body.is_some();
        let mut request = Request::builder()
            .method(method)
            .uri(self.url.path(self.path))
            .header(HOST, self.url.authority())
            .header(ACCEPT_ENCODING, "identity")
            .header(CONNECTION, "close")
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|source| FetchError::Request {
                path: self.path.to_owned(),
                source,
            })?;
        if has_body {
            request
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for name in headers.keys() {
            request.headers_mut().remove(name);
            for value in headers.get_all(name) {
                request.headers_mut().append(name, value.clone());
            }
        }
        Ok(request)
    }

    async fn exchange(
        &self,
        stream: Stream,
        request: Request<Full<Bytes>>,
    ) -> Result<FetchedReply, FetchError> {
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| self.protocol(source))?;
        let mut reply = pin!(async {
            let response = sender
                .send_request(request)
                .await
                .map_err(|source| self.protocol(source))?;
            self.read(response).await
        });
        // The connection is driven here and not in its own task: dropping the call closes the
        // socket.
        let mut connection = pin!(connection);
        let mut connected = true;
        loop {
            tokio::select! {
                biased;
                result = &mut reply => return result,
                // Its error, if any, also reaches the reply.
                _ = &mut connection, if connected => connected = false,
            }
        }
    }

    async fn read(
        &self,
        response: http::Response<hyper::body::Incoming>,
    ) -> Result<FetchedReply, FetchError> {
        let (head, mut body) = response.into_parts();
        // Grows with the received bytes, not with the announced length.
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|source| self.protocol(source))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            if bytes.len() + data.len() > self.max_bytes {
                return Err(FetchError::TooLarge {
                    worker: self.url.display_name(),
                    path: self.path.to_owned(),
                    limit: self.max_bytes,
                });
            }
            bytes.extend_from_slice(data);
        }
        Ok(FetchedReply {
            status: head.status,
            headers: head.headers,
            body: bytes.freeze(),
        })
    }

    fn unreachable(&self, source: io::Error) -> FetchError {
        FetchError::Connect {
            worker: self.url.display_name(),
            source,
        }
    }

    fn timed_out(&self) -> FetchError {
        FetchError::TimedOut {
            worker: self.url.display_name(),
            path: self.path.to_owned(),
            limit: self.timeout,
        }
    }

    fn protocol(&self, source: hyper::Error) -> FetchError {
        FetchError::Protocol {
            worker: self.url.display_name(),
            path: self.path.to_owned(),
            source,
        }
    }
}
