//! Reasons for refusing a call, and the only mapping of them to HTTP statuses.

use axum::http::StatusCode;

/// Longest text of an error, in bytes: it may quote text from outside.
const LONGEST: usize = 400;

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    pub(crate) kind: CallErrorKind,
    pub(crate) message: String,
    /// Top-level field of the body that is at fault.
    pub(crate) field: Option<&'static str>,
}

/// Kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallErrorKind {
    /// The body cannot be read.
    Body,
    /// The required token is missing or wrong.
    Stranger,
    /// Too many wrong tokens came from the caller's address.
    Throttled,
    /// The destination or the origin of the call is not permitted.
    Forbidden,
    /// There is no such registration, or no such route.
    Unknown,
    /// The route takes another method.
    Method,
    /// The body took too long to arrive.
    Slow,
    /// Another registration has this key.
    Conflict,
    /// The body is too long.
    TooLong,
    /// No memory or no room for a registration is free now.
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

    /// Returns the error for a wrong field of the body.
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
            CallErrorKind::Throttled => StatusCode::TOO_MANY_REQUESTS,
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
    fn a_long_foreign_text_is_truncated_between_characters() {
        let error = CallError::new(CallErrorKind::Body, "ü".repeat(1000));
        assert!(
            error.message.len() <= LONGEST + 3 && error.message.ends_with("ü..."),
            "{}",
            error.message
        );
    }
}
