//! Why a reply is not kept.

/// The first reason that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.why())]
pub enum NotCacheable {
    /// It did not come to its end: no `[DONE]`, or a choice that does not say why it finished.
    NotWhole,
    /// More came after `[DONE]`.
    AfterDone,
    /// It carries an error.
    ErrorInBand,
    /// A choice ended because of one.
    FinishedInError,
    /// A call's arguments are no JSON.
    ToolArguments,
    /// It is not the JSON it should be.
    Unreadable,
    /// It has something in it whose pieces cannot be put together safely.
    UnknownShape,
    /// Replies of that dialect are not kept.
    OtherDialect,
}

impl NotCacheable {
    /// The reason in few words, for logs and metrics.
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
