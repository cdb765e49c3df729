//! One exchange with a worker: connects or reuses a connection, sends the request, waits for the
//! reply's head, and reads its body.

use std::{
    io,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, response};
use kv_blocks::WorkerId;
use net::{Address, LocalFault, WorkerUrl};

use super::{
    ConnectionPools, OutgoingBody, SendFuture, Upstream,
    connection::{BegunReply, ExchangeFailure, UpstreamConnection},
    connection_body::ConnectionBody,
    fake::ScriptedBody,
};
use crate::{BodyBuffer, BodyRest, WorkerUpgrade};

/// The request to send, and its worker.
#[derive(Debug)]
pub struct OutgoingRequest<'a> {
    /// The worker, whose idle connections may be used.
    pub worker: WorkerId,
    /// Its address.
    pub url: &'a WorkerUrl,
    /// The request: its target is a path.
    pub request: Request<Bytes>,
    /// The rest of the request's body, which is sent as it arrives.
    pub rest: Option<BodyRest>,
    /// Time limit to open a connection.
    pub connect_timeout: Duration,
}

/// A reply whose head has arrived.
#[derive(Debug)]
pub struct UpstreamReply {
    /// Status and header fields.
    pub head: response::Parts,
    /// The body, with the connection that carries it.
    pub body: UpstreamBody,
}

/// How far an attempt came that got no reply head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendFailure {
    /// C0: the worker provably executed nothing.
    NotSent(NotSent),
    /// C1: bytes were sent, no head came back.
    NoHead,
    /// C1: the answer is not HTTP.
    Protocol,
}

/// The reason why nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSent {
    /// The port refused the connection.
    Refused,
    /// The connection failed for another reason.
    Unreachable,
    /// The fault is local to this process.
    Local(LocalFault),
}

impl Upstream for ConnectionPools {
    fn send<'a>(&'a self, outgoing: OutgoingRequest<'a>) -> SendFuture<'a> {
        Box::pin(self.send_reusing(outgoing))
    }
}

impl ConnectionPools {
    async fn send_reusing(
        &self,
        outgoing: OutgoingRequest<'_>,
    ) -> Result<UpstreamReply, SendFailure> {
        let OutgoingRequest {
            worker,
            url,
            request,
            rest,
            connect_timeout,
        } = outgoing;
        let pool_entry = Some((self.clone(), worker));
        // A body that can be sent only once gets a connection that the worker is not closing.
        let idle = match &rest {
            Some(_) => None,
            None => self.take(worker, self.clock.now()),
        };
        let mut request = request.map(|first| OutgoingBody::new(first, rest));
        if let Some(mut connection) = idle {
            match connection.exchange(&mut request).await {
                Ok(begun) => return Ok(reply(begun, connection, pool_entry)),
                // The worker closed the connection while it was idle. The request goes out on a
                // fresh one; no harm is done.
                Err(ExchangeFailure::Unsent(body)) => *request.body_mut() = body,
                Err(failure) => return Err(no_head(&failure)),
            }
        }
        // Large, and most requests reuse a connection: boxed, so that it does not enlarge every
        // request's future.
        let connection = Box::pin(open(net::dial(url, connect_timeout), |fault, error| {
            self.local_faults.record(fault, error, self.clock.now());
        }));
        send_on(connection.await?, request, pool_entry).await
    }
}

/// Sends one request to a server that is not a worker, on a connection that is not reused.
///
/// # Errors
/// There is no reply head.
pub async fn send_once(
    address: &Address,
    request: Request<Bytes>,
    connect_timeout: Duration,
) -> Result<UpstreamReply, SendFailure> {
    let connection = open(net::connect(address, connect_timeout), |_, _| {}).await?;
    send_on(connection, request.map(OutgoingBody::whole), None).await
}

/// Sends the first request of a connection.
async fn send_on(
    mut connection: UpstreamConnection,
    mut request: Request<OutgoingBody>,
    pool_entry: Option<(ConnectionPools, WorkerId)>,
) -> Result<UpstreamReply, SendFailure> {
    match connection.exchange(&mut request).await {
        Ok(begun) => Ok(reply(begun, connection, pool_entry)),
        Err(failure) => Err(no_head(&failure)),
    }
}

fn reply(
    begun: BegunReply,
    connection: UpstreamConnection,
    pool_entry: Option<(ConnectionPools, WorkerId)>,
) -> UpstreamReply {
    let BegunReply {
        head,
        first,
        writer,
    } = begun;
    UpstreamReply {
        body: UpstreamBody(Source::Connection(ConnectionBody {
            switches_protocol: head.parts.status == StatusCode::SWITCHING_PROTOCOLS,
            decoder: head.decoder,
            keeps_alive: head.keeps_alive,
            received: first,
            fault: None,
            writer,
            connection: Some(connection),
            pool_entry,
        })),
        head: head.parts,
    }
}

fn no_head(failure: &ExchangeFailure) -> SendFailure {
    match failure {
        ExchangeFailure::Unsent(_) => SendFailure::NotSent(NotSent::Unreachable),
        ExchangeFailure::Broken(error) => {
            tracing::debug!(%error, "no head from the worker");
            SendFailure::NoHead
        }
        ExchangeFailure::Invalid(reason) => {
            tracing::debug!(%reason, "no valid head from the worker");
            SendFailure::Protocol
        }
    }
}

/// Waits for a stream that is being opened; calls `local` for a local fault.
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
    Ok(UpstreamConnection::new(stream))
}

/// The rest of a worker's reply, with the connection that carries it. Dropping it closes the
/// connection.
#[derive(Debug)]
pub struct UpstreamBody(Source);

#[derive(Debug)]
enum Source {
    Connection(ConnectionBody),
    Script(ScriptedBody),
}

/// A reply that broke off, or that is not valid HTTP.
#[derive(Debug)]
pub struct BodyError(pub(super) String);

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BodyError {}

/// The reason why a reply could not be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It broke off.
    Broken,
    /// It is longer than allowed.
    TooLong,
}

impl UpstreamBody {
    pub(super) fn scripted(script: ScriptedBody) -> Self {
        Self(Source::Script(script))
    }

    /// Polls for the next bytes, which are never empty; `None` at the end. Trailers are skipped.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.0 {
            Source::Script(script) => script.poll_data(cx),
            Source::Connection(body) => body.poll_data(cx),
        }
    }

    /// Returns the next bytes, as [`Self::poll_data`] does. Cancel-safe.
    pub async fn next_data(&mut self) -> Option<Result<Bytes, BodyError>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Reads the rest, at most `most` bytes of it, and releases the connection.
    ///
    /// # Errors
    /// The reply broke off or is longer; its connection is closed with the body.
    pub async fn read_to_end(&mut self, most: usize) -> Result<Bytes, ReadError> {
        let mut buffer = BodyBuffer::default();
        while let Some(data) = self.next_data().await {
            buffer.push(data.map_err(|_| ReadError::Broken)?);
            if buffer.len() > most {
                return Err(ReadError::TooLong);
            }
        }
        self.release();
        Ok(buffer.into_bytes())
    }

    /// Returns whether the end is reached; known only where the reply announces its length.
    pub fn is_end(&self) -> bool {
        match &self.0 {
            Source::Connection(body) => body.decoder.is_end(),
            Source::Script(script) => script.is_end(),
        }
    }

    /// Returns the number of bytes that are left, where the reply announces its length.
    pub fn announced(&self) -> Option<u64> {
        match &self.0 {
            Source::Connection(body) => body.decoder.announced(),
            Source::Script(script) => script.announced(),
        }
    }

    /// Keeps the connection for another request: the reply was read to its end.
    pub fn release(&mut self) {
        match &mut self.0 {
            Source::Connection(body) => body.release(),
            Source::Script(script) => script.release(),
        }
    }

    /// Returns the connection behind a reply that changes the protocol; `None`: this one does not.
    pub fn into_upgrade(self) -> Option<WorkerUpgrade> {
        match self.0 {
            Source::Connection(body) => body.into_upgrade(),
            Source::Script(_) => None,
        }
    }

    /// Closes the connection, so that the worker stops computing. Later calls do nothing.
    pub fn close(&mut self) {
        match &mut self.0 {
            Source::Connection(body) => body.connection = None,
            Source::Script(script) => script.close(),
        }
    }
}
