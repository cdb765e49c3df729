//! Connections to workers: opens and reuses them, sends one request, and reports exactly how far a
//! failed one came.
//!
//! No retries are decided here: a failure carries its class, C0 to C3, and the request path applies
//! the rule.

mod connection;
mod connection_body;
mod failure;
mod fake;
mod local_faults;
mod message;
mod outgoing_body;
mod pool;
mod reply_decoder;
mod reply_head;
mod request_writer;
mod send;
#[cfg(test)]
mod tests;
mod upstream_body;

pub use failure::{BodyError, NotSent, ReadError, SendFailure};
pub use fake::{FakeReply, FakeUpstream};
pub use message::{OutgoingRequest, SendFuture, Upstream, UpstreamReply};
pub use pool::ConnectionPools;
pub use send::send_once;
pub use upstream_body::UpstreamBody;
