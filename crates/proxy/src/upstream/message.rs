//! A request to a worker and its reply, and the trait through which stages reach the workers.

use std::{fmt, pin::Pin, time::Duration};

use bytes::Bytes;
use http::{Request, response};
use kv_blocks::WorkerId;
use net::WorkerUrl;

use super::{failure::SendFailure, upstream_body::UpstreamBody};
use crate::body_rest::BodyRest;

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

/// The result of one attempt, when it is known.
pub type SendFuture<'a> =
    Pin<Box<dyn Future<Output = Result<UpstreamReply, SendFailure>> + Send + 'a>>;

/// The workers as the stages of a request reach them.
pub trait Upstream: fmt::Debug + Send + Sync {
    /// Sends one request and waits for the head of its reply. Dropping the future closes the
    /// connection, so that the worker notices a client that disconnected.
    fn send<'a>(&'a self, outgoing: OutgoingRequest<'a>) -> SendFuture<'a>;
}
