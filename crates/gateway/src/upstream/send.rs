//! One attempt: connects or reuses a connection, sends the request, waits for the reply's head.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use kv_blocks::WorkerId;
use net::{Address, Clock, LocalFault, WorkerUrl};

use super::{ConnectionPools, UpstreamConnection};

/// The request to send, and its worker.
#[derive(Debug)]
pub(crate) struct OutgoingRequest<'a> {
    pub(crate) worker: WorkerId,
    pub(crate) url: &'a WorkerUrl,
    pub(crate) request: Request<Full<Bytes>>,
    pub(crate) connect_timeout: Duration,
}

/// A reply whose head has arrived, and the connection that carries its body.
#[derive(Debug)]
pub(crate) struct UpstreamReply {
    pub(crate) response: Response<Incoming>,
    pub(crate) connection: UpstreamConnection,
}

/// How far an attempt came that got no reply head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// C0: the worker provably executed nothing.
    NotSent(NotSent),
    /// C1: bytes were sent, no head came back.
    NoHead,
    /// C1: the answer is not HTTP.
    Protocol,
}

/// The reason why nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// The port refused the connection.
    Refused,
    /// The connection failed for another reason.
    Unreachable,
    /// The fault is local to this process.
    Local(LocalFault),
}

impl ConnectionPools {
    /// Sends one request. Dropping the future closes the connection, so the worker sees a client
    /// that hung up.
    pub(crate) async fn send(
        &self,
        outgoing: OutgoingRequest<'_>,
        clock: &Clock,
    ) -> Result<UpstreamReply, SendFailure> {
        let OutgoingRequest {
            worker,
            url,
            mut request,
            connect_timeout,
        } = outgoing;
        if let Some(mut connection) = self.take(worker, clock.now()) {
            match connection.sender().try_send_request(request).await {
                Ok(response) => {
                    return Ok(UpstreamReply {
                        response,
                        connection,
                    });
                }
                // The request comes back whole if the connection closed before its first byte was
                // written: the worker closed it while it was idle. The request goes out on a fresh
                // one; no harm is done.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(no_head(failed.error())),
                },
            }
        }
        // Large, and most requests reuse a connection: boxed, so that it does not enlarge every
        // request's future.
        let connection = Box::pin(open(net::dial(url, connect_timeout), |fault, error| {
            self.local_faults.record(fault, error, clock.now());
        }));
        send_on(connection.await?, request).await
    }
}

/// Sends one request to a server that is not a worker, on a connection that is not reused.
pub(crate) async fn send_once(
    address: &Address,
    request: Request<Full<Bytes>>,
    connect_timeout: Duration,
) -> Result<UpstreamReply, SendFailure> {
    send_on(
        open(net::connect(address, connect_timeout), |_, _| {}).await?,
        request,
    )
    .await
}

/// Sends the first request of a connection.
async fn send_on(
    mut connection: UpstreamConnection,
    request: Request<Full<Bytes>>,
) -> Result<UpstreamReply, SendFailure> {
    match connection.sender().try_send_request(request).await {
        Ok(response) => Ok(UpstreamReply {
            response,
            connection,
        }),
        Err(mut failed) => Err(match failed.take_message() {
            Some(_) => SendFailure::NotSent(NotSent::Unreachable),
            None => no_head(failed.error()),
        }),
    }
}

fn no_head(error: &hyper::Error) -> SendFailure {
    tracing::debug!(%error, "no head from the worker");
    if error.is_parse() || error.is_parse_too_large() {
        SendFailure::Protocol
    } else {
        SendFailure::NoHead
    }
}

/// Performs the HTTP/1 handshake on a stream that is being opened; calls `local` for a local fault.
async fn open(
    opening: impl Future<Output = io::Result<net::Stream>>,
    local: impl FnOnce(LocalFault, &io::Error),
) -> Result<UpstreamConnection, SendFailure> {
    let stream = opening.await.map_err(|error| {
        tracing::debug!(%error, "no connection to a worker");
        SendFailure::NotSent(match (LocalFault::of(&error), error.kind()) {
            (Some(fault), _) => {
                local(fault, &error);
                NotSent::Local(fault)
            }
            (None, io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => NotSent::Refused,
            (None, _) => NotSent::Unreachable,
        })
    })?;
    UpstreamConnection::handshake(stream)
        .await
        .map_err(|_| SendFailure::NotSent(NotSent::Unreachable))
}
