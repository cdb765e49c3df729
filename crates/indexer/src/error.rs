//! Why a call was refused, and the one place that says with which status.

use axum::http::StatusCode;

/// Longest text of an error, bytes: texts of others may be quoted in it.
const LONGEST: usize = 400;

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    pub(crate) kind: CallErrorKind,
    pub(crate) message: String,
    /// The body's top-level field that is at fault.
    pub(crate) field: Option<&'static str>,
}

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallErrorKind {
    /// The body.
    Body,
    /// It comes without the token that is needed.
    Stranger,
    /// It leads where it may not, or comes from where it may not.
    Forbidden,
    /// There is no such registration, or no such route.
    Unknown,
    /// The route answers another method.
    Method,
    /// It took too long to arrive.
    Slow,
    /// Something else is registered under this key.
    Conflict,
    /// The body is too long.
    TooLong,
    /// There is no room now.
    Full,
}

impl CallError {
    pub(crate) fn new(kind: CallErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > LONGEST {
            message.truncate(message.floor_char_boundary(LONGEST));
            message.push_str("...");
        }
        Self {
            kind,
            message,
            field: None,
        }
    }

    /// A field of the body is wrong.
    pub(crate) fn field(field: &'static str, message: impl Into<String>) -> Self {
        Self::new(CallErrorKind::Body, message).at(field)
    }

    #[must_use]
    pub(crate) fn at(mut self, field: &'static str) -> Self {
        self.field = Some(field);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            CallErrorKind::Body => StatusCode::BAD_REQUEST,
            CallErrorKind::Stranger => StatusCode::UNAUTHORIZED,
            CallErrorKind::Forbidden => StatusCode::FORBIDDEN,
            CallErrorKind::Unknown => StatusCode::NOT_FOUND,
            CallErrorKind::Method => StatusCode::METHOD_NOT_ALLOWED,
            CallErrorKind::Slow => StatusCode::REQUEST_TIMEOUT,
            CallErrorKind::Conflict => StatusCode::CONFLICT,
            CallErrorKind::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            CallErrorKind::Full => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_of_others_is_cut_between_characters() {
        let error = CallError::new(CallErrorKind::Body, "ü".repeat(1000));
        assert!(
            error.message.len() <= LONGEST + 3 && error.message.ends_with("ü..."),
            "{}",
            error.message
        );
    }
}
