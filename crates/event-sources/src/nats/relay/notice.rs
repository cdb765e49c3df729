//! A relay's notices for its operator.

use std::fmt;

use zmtp::Endpoint;

use crate::{NatsEndpoint, NatsServer};

/// A change of interest to an operator. Each is reported once, and again only after the opposite
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayNotice {
    /// The publisher is connected.
    EngineConnected(Endpoint),
    /// The publisher is disconnected or unreachable.
    EngineLost {
        /// The publisher's socket.
        endpoint: Endpoint,
        /// The reason.
        reason: String,
    },
    /// The publisher's messages go to NATS from now on.
    Relaying(NatsEndpoint),
    /// The connection to NATS ended.
    NatsLost(NatsServer),
    /// NATS is unreachable; attempts continue.
    NatsUnreachable(String),
    /// The NATS server reported an error.
    NatsFault(String),
    /// The outbox is full and drops its oldest messages.
    Overflowing,
    /// The outbox is empty again.
    Dropped {
        /// Messages dropped meanwhile.
        messages: u64,
    },
    /// A message was larger than the server accepts. Reported once.
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The server's `max_payload`.
        limit: usize,
    },
    /// A message has no number, or a topic that is invalid in a header. Reported once.
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
            Self::Dropped { messages } => write!(
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
