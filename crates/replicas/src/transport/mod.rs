//! How messages reach the other replicas: over NATS, or over HTTP between the replicas themselves.
//!
//! Both deliver messages at most once and in the order of their sender; what is lost is found by
//! the numbers and digests in the messages. Nothing here waits for a slow peer: a sender drops, a
//! receiver reconnects.

#[cfg(feature = "nats")]
mod departures;
mod feed;
#[cfg(feature = "nats")]
mod nats;
mod peer_addresses;
mod peers;

use std::time::Duration;

use bytes::Bytes;

pub use feed::Feed;
pub(crate) use feed::{FeedHub, FrameSplitter};
#[cfg(feature = "nats")]
pub(crate) use nats::{NatsTransport, ReplicaSubjects};
pub use peer_addresses::PeerAddressError;
pub(crate) use peers::{FEED, PeerTransport, PeerTransportSpec};

use crate::wire::{Envelope, StatePage};

/// Time for the last message to leave.
const FAREWELL: Duration = Duration::from_millis(100);

/// What a transport reports.
#[derive(Debug)]
pub(crate) enum TransportEvent {
    /// A message.
    Message {
        message: Box<Envelope>,
        /// Its length.
        bytes: usize,
    },
    /// A message that cannot be decoded.
    Malformed,
    /// Messages can be sent and received from now on.
    #[cfg(feature = "nats")]
    Connected,
    /// A peer's request for own open requests.
    #[cfg(feature = "nats")]
    PageRequest(crate::exchange::PageRequest),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishOutcome {
    /// It leaves, now or behind others.
    Sent,
    /// It is dropped: there is no connection.
    #[cfg(feature = "nats")]
    Away,
    /// It is dropped: too many wait already.
    #[cfg(feature = "nats")]
    Full,
}

/// The transport of this replica.
#[derive(Debug)]
pub(crate) enum Transport {
    /// HTTP between replicas.
    Peers(PeerTransport),
    /// NATS.
    #[cfg(feature = "nats")]
    Nats(Box<NatsTransport>),
}

impl Transport {
    /// Sends a message to every replica. Never waits.
    pub(crate) fn publish(&mut self, message: Bytes) -> PublishOutcome {
        match self {
            Self::Peers(peers) => {
                peers.publish(message);
                PublishOutcome::Sent
            }
            #[cfg(feature = "nats")]
            Self::Nats(bus) => bus.publish(message),
        }
    }

    /// Returns the next event. Cancel-safe.
    pub(crate) async fn next(&mut self) -> TransportEvent {
        match self {
            Self::Peers(peers) => peers.next().await,
            #[cfg(feature = "nats")]
            Self::Nats(bus) => bus.next().await,
        }
    }

    /// Returns what fetches the load of peers.
    pub(crate) fn fetcher(&self) -> StateFetcher {
        match self {
            Self::Peers(peers) => StateFetcher::Peers(peers.fetcher()),
            #[cfg(feature = "nats")]
            Self::Nats(bus) => StateFetcher::Nats(bus.fetcher()),
        }
    }

    /// Returns whether messages can be sent and received: over HTTP, from at least one peer.
    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Peers(peers) => peers.is_connected(),
            #[cfg(feature = "nats")]
            Self::Nats(bus) => bus.is_connected(),
        }
    }

    /// Waits until the last message has left.
    pub(crate) async fn farewell(self) {
        tokio::time::sleep(FAREWELL).await;
    }
}

/// Fetches the load of peers.
#[derive(Clone, Debug)]
pub(crate) enum StateFetcher {
    /// From their admin listeners.
    Peers(peers::PageFetcher),
    /// Over NATS.
    #[cfg(feature = "nats")]
    Nats(nats::NatsPageFetcher),
}

impl StateFetcher {
    /// Fetches the open requests of a peer with ids above `after`.
    pub(crate) async fn page(&self, peer: u64, after: u64) -> Result<StatePage, String> {
        match self {
            Self::Peers(fetcher) => fetcher.page(peer, after).await,
            #[cfg(feature = "nats")]
            Self::Nats(fetcher) => fetcher.page(peer, after).await,
        }
    }
}
