//! What every listener of the program needs: places for connections, an accept loop that rests when the system has no
//! descriptors, and a client's connection with deadlines.
//!
//! The listener of clients, that of operators, and bound event sockets share it.
//!
//! Not here: what is spoken on a connection, and when a listener stops.
//!
//! **Invariant**: a connection with a request in progress never yields its place to another one.

mod acceptor;
mod client_stream;
mod peer_address;
mod table;

pub use acceptor::Acceptor;
pub use client_stream::{ClientStream, ExchangeGuard, ExchangeTracker, InProgressBody};
pub use peer_address::PeerAddress;
pub use table::{ConnectionSlot, ConnectionTable};
