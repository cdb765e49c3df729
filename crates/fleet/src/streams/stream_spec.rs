//! A stream that a worker should have.

use kv_blocks::DpRank;

use super::followed::RankSelection;
use crate::probe::event_endpoints::EventEndpoint;

/// A stream to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamSpec {
    /// One rank's ZMQ publisher.
    Publisher(EventEndpoint),
    /// A socket of ours that one rank connects to, and maybe others.
    Bound { rank: u32, endpoint: String },
    /// Standard events over HTTP or a WebSocket.
    Standard { endpoint: String },
    /// The event list that the engine at this URL serves to polls.
    Polled { endpoint: String },
    /// A store beside the engine, for all its ranks.
    Store { ranks: u32, endpoint: String },
    /// One rank's NATS subject.
    Nats { rank: u32, endpoint: String },
}

impl StreamSpec {
    pub(crate) fn ranks(&self) -> RankSelection {
        match self {
            Self::Publisher(EventEndpoint { rank, .. })
            | Self::Nats { rank, .. }
            | Self::Bound { rank, .. } => RankSelection::One(DpRank(*rank)),
            Self::Standard { .. } | Self::Polled { .. } => RankSelection::All,
            Self::Store { .. } => RankSelection::Beside,
        }
    }

    /// Returns whether blocks of an earlier process may stay when the stream starts: it can prove
    /// where it continues, or its start has no effect on blocks.
    pub(crate) fn resumes(&self) -> bool {
        match self {
            Self::Publisher(_) | Self::Nats { .. } | Self::Store { .. } => true,
            Self::Bound { .. } | Self::Standard { .. } | Self::Polled { .. } => false,
        }
    }

    pub(crate) fn into_publisher(self) -> Option<EventEndpoint> {
        match self {
            Self::Publisher(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    pub(crate) fn endpoint(&self) -> &str {
        match self {
            Self::Publisher(EventEndpoint { endpoint, .. })
            | Self::Bound { endpoint, .. }
            | Self::Standard { endpoint }
            | Self::Polled { endpoint }
            | Self::Store { endpoint, .. }
            | Self::Nats { endpoint, .. } => endpoint,
        }
    }
}
