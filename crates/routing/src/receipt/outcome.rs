//! The outcome of a request.

use std::sync::Arc;

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOutcome {
    /// The kind of outcome.
    pub kind: OutcomeKind,
    /// The status the client got; `None` if it left before one was sent.
    pub status: Option<u16>,
    /// Time to first token.
    pub ttft_ms: Option<f64>,
    /// Time to the end of the reply.
    pub duration_ms: f64,
    /// Prompt tokens by the engine's count.
    pub prompt_tokens: Option<u32>,
    /// Completion tokens by the engine's count.
    pub completion_tokens: Option<u32>,
    /// Cached tokens by the engine's count.
    pub cached_tokens: Option<u32>,
    /// Why generation ended.
    pub finish_reason: Option<Arc<str>>,
}

/// The six kinds of outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeKind {
    /// Success.
    Ok,
    /// An error of the client.
    ClientError,
    /// Refused for lack of capacity.
    Shed,
    /// An error of the engine.
    UpstreamError,
    /// An error of the router.
    RouterError,
    /// The client closed the connection.
    ClientGone,
}

impl OutcomeKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::ClientError,
        Self::Shed,
        Self::UpstreamError,
        Self::RouterError,
        Self::ClientGone,
    ];

    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::Shed => "shed",
            Self::UpstreamError => "upstream_error",
            Self::RouterError => "router_error",
            Self::ClientGone => "client_gone",
        }
    }
}
