//! The reasons why a reply is not cached.

/// The first reason that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.why())]
pub enum NotCacheable {
    /// The reply is incomplete: no `[DONE]`, or a choice without a finish reason.
    NotWhole,
    /// Data followed `[DONE]`.
    AfterDone,
    /// The reply carries an error.
    ErrorInBand,
    /// A choice ended because of an error.
    FinishedInError,
    /// The arguments of a call are not JSON.
    ToolArguments,
    /// The reply is not the expected JSON.
    Unreadable,
    /// The reply contains a member whose pieces cannot be joined safely.
    UnknownShape,
    /// Replies of that dialect are never cached.
    OtherDialect,
}

impl NotCacheable {
    /// Returns the reason in a few words, for logs and metrics.
    pub fn why(self) -> &'static str {
        match self {
            Self::NotWhole => "not_whole",
            Self::AfterDone => "after_done",
            Self::ErrorInBand => "error_in_band",
            Self::FinishedInError => "finished_in_error",
            Self::ToolArguments => "tool_arguments",
            Self::Unreadable => "unreadable",
            Self::UnknownShape => "unknown_shape",
            Self::OtherDialect => "other_dialect",
        }
    }
}
