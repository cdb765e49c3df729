//! Connections to workers: opens and reuses them, sends one request, and reports exactly how far a
//! failed one came.
//!
//! No retries are decided here: a failure carries its class, C0 to C3, and the request path applies
//! the rule.

mod connection;
mod connection_body;
mod fake;
mod local_faults;
mod outgoing_body;
mod pool;
mod reply_decoder;
mod reply_head;
mod request_writer;
mod send;
#[cfg(test)]
mod tests;

use std::{fmt, pin::Pin};

pub use fake::{FakeReply, FakeUpstream};
use outgoing_body::OutgoingBody;
pub use pool::ConnectionPools;
pub use send::{
    BodyError, NotSent, OutgoingRequest, ReadError, SendFailure, UpstreamBody, UpstreamReply,
    send_once,
};

/// The result of one attempt, when it is known.
pub type SendFuture<'a> =
    Pin<Box<dyn Future<Output = Result<UpstreamReply, SendFailure>> + Send + 'a>>;

/// The workers as the stages of a request reach them.
pub trait Upstream: fmt::Debug + Send + Sync {
    /// Sends one request and waits for the head of its reply. Dropping the future closes the
    /// connection, so that the worker notices a client that disconnected.
    fn send<'a>(&'a self, outgoing: OutgoingRequest<'a>) -> SendFuture<'a>;
}
