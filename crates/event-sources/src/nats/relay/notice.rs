//! What a relay says to whoever runs it.

use std::fmt;

use zmtp::Endpoint;

use crate::{NatsEndpoint, NatsServer};

/// A change that an operator wants to hear of. Each is said once, and again only after it was otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayNotice {
    /// The publisher is followed.
    EngineConnected(Endpoint),
    /// It is not any more, or cannot be.
    EngineLost {
        /// Its socket.
        endpoint: Endpoint,
        /// Why.
        reason: String,
    },
    /// What it publishes goes to NATS from now on.
    Relaying(NatsEndpoint),
    /// The connection to NATS is gone.
    NatsLost(NatsServer),
    /// There is no connection to NATS, which is tried again and again.
    NatsUnreachable(String),
    /// The NATS server complains.
    NatsFault(String),
    /// The outbox is full: its oldest messages are being let go.
    Overflowing,
    /// The outbox is empty again.
    LetGo {
        /// So many messages were let go meanwhile.
        messages: u64,
    },
    /// A message was larger than the server takes. Said once.
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The server's `max_payload`.
        limit: usize,
    },
    /// A message has no number, or a topic that cannot stand in a header. Said once.
    NotRelayable(String),
}

impl fmt::Display for RelayNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EngineConnected(endpoint) => write!(f, "connected to {endpoint}"),
            Self::EngineLost { endpoint, reason } => {
                write!(f, "no connection to {endpoint}: {reason}")
            }
            Self::Relaying(endpoint) => write!(f, "relaying to {endpoint}"),
            Self::NatsLost(server) => write!(f, "connection to {server} lost"),
            Self::NatsUnreachable(reason) | Self::NatsFault(reason) => write!(f, "nats: {reason}"),
            Self::Overflowing => f.write_str(
                "nats takes less than is published: the oldest waiting messages are let go",
            ),
            Self::LetGo { messages } => write!(
                f,
                "{messages} messages were let go; readers see what is missing"
            ),
            Self::TooLarge { bytes, limit } => write!(
                f,
                "a message of {bytes} bytes is let go, as all above the server's limit of {limit}: raise its max_payload"
            ),
            Self::NotRelayable(reason) => {
                write!(f, "a message is let go, as all like it: {reason}")
            }
        }
    }
}
