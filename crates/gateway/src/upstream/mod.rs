//! Connections to workers: open, reuse, send one request, and say exactly how far a failed one got.
//!
//! Nothing here decides whether a failure is retried: it reports which of the classes C0 to C3 the failure is in, and
//! the request path looks up the rule.

mod connection;
mod local_faults;
mod pool;
mod send;

pub(crate) use connection::UpstreamConnection;
pub(crate) use pool::ConnectionPools;
pub(crate) use send::{NotSent, OutgoingRequest, SendFailure, UpstreamReply, send_once};
