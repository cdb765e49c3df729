//! The protocol without sockets: bytes in, events out, bytes to send.
//!
//! [`Session`] is one side of one connection. It is fed whatever arrived, in whatever pieces, and neither reads, waits
//! nor knows the time.
//!
//! **Invariant**: whatever bytes come in, no call panics, and what a session holds is bounded by its
//! [`Limits`](crate::Limits).

mod command;
mod frame;
mod greeting;
mod ready;
mod session;

pub use frame::encode_message;
pub use session::{Incoming, ProtocolError, SocketType, ZmtpSession};
