//! What goes wrong with Redis.

use std::io;

use redis::{ErrorKind, RedisError};

/// Longest text of a server that is passed on, characters.
const MOST_TEXT: usize = 200;

/// The kinds that metrics tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// There is no connection, or it was lost.
    Connection,
    /// The server did not answer in time.
    Timeout,
    /// It answered something else than what was asked for.
    Other,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Connection, Self::Timeout, Self::Other];

    /// The value of the label `type` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Other => "other",
        }
    }
}

/// One thing that went wrong. Never a reason for a request to fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RedisFault {
    /// What kind of thing.
    pub kind: FaultKind,
    /// Whether the server is to be left alone until it is seen to be well again. Not after a mere refusal: a server that
    /// cannot be written to may still be read.
    pub outage: bool,
    /// For people.
    pub reason: String,
}

impl RedisFault {
    /// No connection could be made.
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

    pub(crate) fn timeout(what: &str, limit: std::time::Duration) -> Self {
        Self {
            kind: FaultKind::Timeout,
            outage: true,
            reason: format!("no {what} within {limit:?}"),
        }
    }

    /// Nothing was tried: the server is known to be away.
    pub(crate) fn away() -> Self {
        Self {
            kind: FaultKind::Connection,
            outage: true,
            reason: "it is known to be away".to_owned(),
        }
    }

    /// The answer was cut off. That ends its connection, but says nothing against the server.
    pub(crate) fn too_long() -> Self {
        Self {
            kind: FaultKind::Other,
            outage: false,
            reason: "an answer longer than it may be".to_owned(),
        }
    }

    /// The answer is none to what was asked.
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
            // The server understood and said no.
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType => {
                (FaultKind::Other, false)
            }
            // We are not let in, or what came is no answer at all and the connection is over.
            _ => (FaultKind::Other, true),
        };
        Self {
            kind,
            outage,
            reason: cut(&error.to_string()),
        }
    }
}

/// A text from elsewhere, on one line and not long.
fn cut(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(MOST_TEXT)
        .collect()
}
