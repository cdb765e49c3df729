//! The two ways in which a chat is not rendered.

use crate::PromptError;

pub(super) fn unsupported(what: impl Into<String>) -> PromptError {
    PromptError::Unsupported {
        what: what.into(),
        is_too_long: false,
    }
}

pub(super) fn refused(why: impl Into<String>) -> PromptError {
    PromptError::Refused(why.into())
}
