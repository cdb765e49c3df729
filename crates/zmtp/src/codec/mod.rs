//! The protocol without sockets: bytes in, events out, bytes to send.
//!
//! [`ZmtpSession`] is one side of one connection. It takes bytes in pieces of any size, and neither
//! reads, waits nor knows the time.
//!
//! **Invariant**: no input makes a call panic, and a session's memory is bounded by its
//! [`Limits`](crate::Limits).

mod command;
mod frame;
mod greeting;
mod ready;
mod session;

pub use frame::encode_message;
pub use session::{Incoming, ProtocolError, SocketType, ZmtpSession};
