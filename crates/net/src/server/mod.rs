//! Parts common to all listeners: connection slots, an accept loop that pauses when the system has
//! no descriptors, and a client's connection with deadlines.
//!
//! The client listener, the admin listener, and bound event sockets share it.
//!
//! Not here: the protocol of a connection, and when a listener stops.
//!
//! **Invariant**: a connection with a request in progress never yields its slot to another one.

mod acceptor;
mod client_stream;
mod exchange;
mod frame_meter;
mod key_throttle;
mod peer_address;
mod reply_watch;
mod request_framing;
mod table;
mod web_page;

pub use acceptor::Acceptor;
pub use client_stream::{ClientStream, HttpVersion};
pub use exchange::{ExchangeGuard, ExchangeTracker, in_progress};
pub use key_throttle::KeyThrottle;
pub use peer_address::PeerAddress;
pub use reply_watch::{ReplyWatch, WatchedBody};
pub use request_framing::FramingError;
pub use table::{ConnectionSlot, ConnectionTable};
pub use web_page::{foreign_origin, is_from_another_page, is_here, is_private_name};
