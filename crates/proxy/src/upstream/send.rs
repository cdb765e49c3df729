//! One exchange with a worker: connects or reuses a connection, sends the request, and waits for the
//! reply's head.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};
use kv_blocks::WorkerId;
use net::{Address, Destinations, LocalFault};

use super::{
    connection::{BegunReply, ExchangeFailure, UpstreamConnection},
    connection_body::ConnectionBody,
    failure::{NotSent, SendFailure},
    message::{OutgoingRequest, SendFuture, Upstream, UpstreamReply},
    outgoing_body::OutgoingBody,
    pool::ConnectionPools,
    upstream_body::UpstreamBody,
};

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

/// Sends one request to a server that is not a worker, on a connection that is not reused, if
/// `destinations` permits its address.
///
/// # Errors
/// There is no reply head.
pub async fn send_once(
    address: &Address,
    destinations: Destinations,
    request: Request<Bytes>,
    connect_timeout: Duration,
) -> Result<UpstreamReply, SendFailure> {
    let opening = destinations.connect(address, connect_timeout);
    let connection = open(opening, |_, _| {}).await?;
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
        body: UpstreamBody::of_connection(ConnectionBody {
            switches_protocol: head.parts.status == StatusCode::SWITCHING_PROTOCOLS,
            decoder: head.decoder,
            keeps_alive: head.keeps_alive,
            received: first,
            fault: None,
            writer,
            connection: Some(connection),
            pool_entry,
        }),
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
