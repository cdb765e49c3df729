//! Request failures that the request path reports about a worker.

/// How a request failed at a worker. A client's own mistake (a passed-through 4xx) is no failure
/// and is not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The port refused the connection: the process has ended.
    Refused,
    /// No connection for a reason that lies with this process or its machine: no descriptor, no
    /// port, no memory, no answer from the resolver. It is no evidence about the worker.
    Local,
    /// No connection within the connect timeout, or no route.
    ConnectTimeout,
    /// The connection closed before the reply's head.
    ResetBeforeHead,
    /// No head within the first-byte limit.
    FirstByteTimeout,
    /// A reply that is not HTTP.
    Protocol,
    /// A 5xx other than 503.
    Status,
    /// A 503: the worker reports that it cannot serve now (loading or overloaded).
    Unavailable,
    /// The body ended or stalled after the head.
    MidStream,
    /// A stream that ended without its end marker.
    Incomplete,
}

impl FailureKind {
    /// Returns whether a time-out may be the cause.
    pub(crate) fn is_timeout(self) -> bool {
        matches!(
            self,
            Self::ConnectTimeout | Self::FirstByteTimeout | Self::MidStream
        )
    }

    /// Returns the word used in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Local => "local",
            Self::ConnectTimeout => "connect_timeout",
            Self::ResetBeforeHead => "reset_before_head",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::Protocol => "protocol",
            Self::Status => "status",
            Self::Unavailable => "unavailable",
            Self::MidStream => "mid_stream",
            Self::Incomplete => "incomplete",
        }
    }
}
