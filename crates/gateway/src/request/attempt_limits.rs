//! Time limits of attempts.

use std::time::Duration;

/// Time limits of an attempt and its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptLimits {
    /// To a stream's first byte, or to the end of any other reply, over all attempts.
    pub(crate) request: Duration,
    /// To open a connection.
    pub(crate) connect: Duration,
    /// Of a running stream.
    pub(crate) stream: StreamLimits,
}

/// Limits of a running stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    pub(crate) idle: Duration,
    pub(crate) total: Duration,
    /// Whether a stream without its end marker is cut.
    pub(crate) strict: bool,
}
