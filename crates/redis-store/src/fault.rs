//! Faults of Redis.

use std::io;

use redis::{ErrorKind, RedisError};

/// Maximum length of a server's text that is passed on, characters.
const MOST_TEXT: usize = 200;

/// Kind of a fault, as distinguished in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// There is no connection, or it was lost.
    Connection,
    /// The server did not answer in time.
    Timeout,
    /// The server's answer does not match the command.
    Other,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Connection, Self::Timeout, Self::Other];

    /// Returns the value of the label `type` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Other => "other",
        }
    }
}

/// One fault. It never makes a request fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RedisFault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Whether the server is out of use until a check succeeds. A mere refusal is no outage: a
    /// server that rejects writes may still answer reads.
    pub outage: bool,
    /// Human-readable reason.
    pub reason: String,
}

impl RedisFault {
    /// Returns the fault for a connection that could not be made.
    pub(crate) fn unreachable(error: &io::Error) -> Self {
        let kind = if error.kind() == io::ErrorKind::TimedOut {
            FaultKind::Timeout
        } else {
            FaultKind::Connection
        };
        Self {
            kind,
            outage: true,
            reason: cut(&error.to_string()),
        }
    }

    /// Returns the fault for a connection that could not be encrypted.
    pub(crate) fn handshake(host: &str, error: &io::Error) -> Self {
        Self {
            reason: format!(
                "the TLS handshake failed ({}): the server needs a certificate for {host} by an authority that this machine \
                 or response_cache.redis.tls_ca trusts",
                cut(&error.to_string())
            ),
            ..Self::unreachable(error)
        }
    }

    pub(crate) fn timeout(what: &str, limit: std::time::Duration) -> Self {
        Self {
            kind: FaultKind::Timeout,
            outage: true,
            reason: format!("no {what} within {limit:?}"),
        }
    }

    /// Returns the fault for a node of a cluster.
    pub(crate) fn cluster() -> Self {
        Self {
            kind: FaultKind::Other,
            outage: true,
            reason: "response_cache.redis.url names a node of a Redis Cluster (cluster_enabled:1), which refuses the keys of \
                     other nodes: expected one server, or a primary with replicas; give the URL of such a server"
                .to_owned(),
        }
    }

    /// Returns the fault for sentinels that cannot be asked, or do not know the primary.
    pub(crate) fn no_primary(reason: &str) -> Self {
        Self {
            kind: FaultKind::Connection,
            outage: true,
            reason: format!("no sentinel names a primary: {reason}"),
        }
    }

    /// Returns the fault for a server that is no longer the primary.
    pub(crate) fn demoted(role: &str) -> Self {
        Self {
            kind: FaultKind::Connection,
            outage: true,
            reason: format!(
                "the server that a sentinel named is a {role} now: looking for the primary"
            ),
        }
    }

    /// Returns the fault for a skipped command: the server is known to be down.
    pub(crate) fn unavailable() -> Self {
        Self {
            kind: FaultKind::Connection,
            outage: true,
            reason: "it is known to be away".to_owned(),
        }
    }

    /// Returns the fault for an answer over the limit. That ends its connection but is no sign of
    /// an outage.
    pub(crate) fn too_long() -> Self {
        Self {
            kind: FaultKind::Other,
            outage: false,
            reason: "an answer longer than it may be".to_owned(),
        }
    }

    /// Returns the fault for an answer that does not match the command.
    pub(crate) fn unusable(what: &str) -> Self {
        Self {
            kind: FaultKind::Other,
            outage: false,
            reason: format!("an answer that is no {what}"),
        }
    }
}

impl From<&RedisError> for RedisFault {
    fn from(error: &RedisError) -> Self {
        let (kind, outage) = match error.kind() {
            _ if error.is_timeout() => (FaultKind::Timeout, true),
            ErrorKind::Io => (FaultKind::Connection, true),
            // The server understood the command and refused it.
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType => {
                (FaultKind::Other, false)
            }
            // The login failed, or the answer is not valid and the connection is over.
            _ => (FaultKind::Other, true),
        };
        Self {
            kind,
            outage,
            reason: cut(&error.to_string()),
        }
    }
}

/// Shortens a foreign text to one line.
pub(crate) fn cut(text: &str) -> String {
    text.chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .take(MOST_TEXT)
        .collect()
}
