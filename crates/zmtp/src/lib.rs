//! ZMTP 3.0/3.1 (ZeroMQ's wire protocol) with hard limits, for sockets that face untrusted peers.
//!
//! NULL mechanism; `tcp` and `ipc`; [`Sub`] and [`Dealer`] for readers of event streams, [`Pub`]
//! and [`Router`] for publishers, and both together with a [`ReplayBuffer`] as [`BatchPublisher`].
//! Every disconnect is reported: for an event stream it may mean that the publisher restarted.
//!
//! Not here: the meaning of payloads, security mechanisms, other socket types.
//!
//! **Invariant**: no memory is reserved because a peer announced it. Lengths are checked against
//! [`Limits`] as soon as a frame header is read, and buffers grow with the received bytes.
//! Incomplete messages of all peers of bound sockets have a common bound ([`ReceiveBudget`]).

mod accept;
mod backoff;
mod batch_publisher;
pub mod codec;
mod connection;
mod dealer;
mod endpoint;
mod limits;
mod peer_filter;
mod publisher;
mod receive_budget;
mod router;
mod sub;
mod subscriber;

pub use batch_publisher::{BatchForm, BatchPublisher, NumberedBatch, ReplayBuffer};
pub use connection::Disconnect;
pub use dealer::Dealer;
pub use endpoint::{Endpoint, EndpointError};
pub use limits::Limits;
pub use peer_filter::PeerFilter;
pub use publisher::{Pub, PubSettings};
pub use receive_budget::ReceiveBudget;
pub use router::{PeerId, Router};
pub use sub::{Sub, SubEvent};
