//! One attempt: connect or reuse, send the request, wait for the reply's head.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use kv_blocks::WorkerId;
use net::{Clock, WorkerUrl};

use super::{Connection, Pools};

/// What to send, and where.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) worker: WorkerId,
    pub(crate) url: &'a WorkerUrl,
    pub(crate) request: Request<Full<Bytes>>,
    pub(crate) connect_timeout: Duration,
}

/// A reply whose head has arrived, and the connection its body still comes through.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) connection: Connection,
}

/// How far an attempt without a reply's head got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// C0: provably nothing was executed. `refused`: nothing listens there.
    NotSent {
        /// The port answered that nobody listens.
        refused: bool,
    },
    /// C1: bytes went out, no head came back.
    NoHead,
    /// C1: what came back is not HTTP.
    Protocol,
}

impl Pools {
    /// Sends one request. Dropping the future closes the connection, so the worker sees a client that hung up.
    pub(crate) async fn send(&self, outgoing: Outgoing<'_>, clock: &Clock) -> Result<Answer, SendFailure> {
        let Outgoing { worker, url, mut request, connect_timeout } = outgoing;
        loop {
            let mut connection = match self.take(worker, clock.now()) {
                Some(connection) => connection,
                None => open(url, connect_timeout).await?,
            };
            connection.sent += 1;
            match connection.sender().try_send_request(request).await {
                Ok(response) => return Ok(Answer { response, connection }),
                // The request comes back whole when the connection closed before its first byte was written. A pooled
                // one may have been closed by the worker while idle: the next round takes another or opens a fresh one.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if connection.sent > 1 => request = unsent,
                    Some(_) => return Err(SendFailure::NotSent { refused: false }),
                    None => {
                        let error = failed.into_error();
                        tracing::debug!(%error, "no head from the worker");
                        let parse = error.is_parse() || error.is_parse_too_large();
                        return Err(if parse { SendFailure::Protocol } else { SendFailure::NoHead });
                    }
                },
            }
        }
    }
}

async fn open(url: &WorkerUrl, timeout: Duration) -> Result<Connection, SendFailure> {
    let stream = net::connect(&url.address(), timeout).await.map_err(|error| SendFailure::NotSent {
        refused: error.kind() == std::io::ErrorKind::ConnectionRefused || error.kind() == std::io::ErrorKind::NotFound,
    })?;
    Connection::handshake(stream).await.map_err(|_| SendFailure::NotSent { refused: false })
}
