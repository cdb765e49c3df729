//! The attempts of a request.

use std::sync::Arc;

use kv_blocks::Target;

/// One try at one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// From 1.
    pub n: u32,
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Class of the failure; `None` if it did not fail.
    pub class: Option<AttemptClass>,
    /// The result.
    pub result: AttemptResult,
    /// The engine's status, if a head came.
    pub status: Option<u16>,
    /// Duration of the attempt.
    pub ms: f64,
}

/// How far a failed attempt had come, which decides whether another may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptClass {
    /// Nothing was sent.
    C0,
    /// The request was sent, and nothing came back.
    C1,
    /// Refused with a status, nothing forwarded.
    C2,
    /// The reply had begun.
    C3,
}

impl AttemptClass {
    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::C0 => "C0",
            Self::C1 => "C1",
            Self::C2 => "C2",
            Self::C3 => "C3",
        }
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptResult {
    /// Complete reply.
    Ok,
    /// No connection.
    ConnectFailed,
    /// The connection ended before the head.
    ResetBeforeHead,
    /// An error status.
    Status,
    /// Too slow.
    Timeout,
    /// Invalid HTTP.
    Protocol,
    /// The reply was cut.
    MidStream,
    /// The client closed the connection.
    ClientGone,
    /// Cancelled because another worker answered first.
    Cancelled,
}

impl AttemptResult {
    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ConnectFailed => "connect_failed",
            Self::ResetBeforeHead => "reset_before_head",
            Self::Status => "status",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::MidStream => "mid_stream",
            Self::ClientGone => "client_gone",
            Self::Cancelled => "cancelled",
        }
    }
}
