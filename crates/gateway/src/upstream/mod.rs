//! Connections to workers: opens and reuses them, sends one request, and reports exactly how far a
//! failed one came.
//!
//! No retries are decided here: a failure carries its class, C0 to C3, and the request path applies
//! the rule.

mod connection;
mod local_faults;
mod pool;
mod send;

pub(crate) use connection::UpstreamConnection;
pub(crate) use pool::ConnectionPools;
pub(crate) use send::{NotSent, OutgoingRequest, SendFailure, UpstreamReply, send_once};
