//! What the end of an attempt says about its worker's health and cache.

/// How an attempt at a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The worker sent a whole reply without an error.
    Complete,
    /// The worker received the prompt, and its reply failed: it broke off, stalled, or contained
    /// an error.
    BrokenOff,
    /// No reply began: the worker could not be reached, refused the request, or failed.
    Failed,
    /// The worker did not take the prompt, through no fault of its own: it throttles (429), or the
    /// router could not open a connection.
    NotTaken,
    /// No result: the client disconnected, the router ended the reply by its own limit, or another
    /// attempt answered first.
    Cancelled,
}

impl AttemptEnd {
    /// Returns whether it counts as a success of the worker; `None`: it does not count.
    pub(crate) fn succeeded(self) -> Option<bool> {
        match self {
            Self::Complete => Some(true),
            Self::BrokenOff | Self::Failed => Some(false),
            Self::NotTaken | Self::Cancelled => None,
        }
    }

    /// Returns whether the worker received the prompt, so that its cache may hold it.
    pub(crate) fn prompt_received(self) -> bool {
        !matches!(self, Self::Failed | Self::NotTaken)
    }
}
