//! Why a body cannot be routed.

use crate::{ApiError, ErrorCode, json::JsonError};

/// The reason why a body cannot be routed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Not JSON, or JSON beyond the limits.
    #[error("the body is not valid json: {0}; send one json object in utf-8")]
    Json(#[from] JsonError),
    /// Not UTF-8.
    #[error("the body is not utf-8 from byte {at} on; send one json object in utf-8")]
    Utf8 {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// JSON, but not an object.
    #[error(
        "the body is json but not an object; send an object with at least model and the prompt"
    )]
    NotAnObject,
    /// A key that routing reads occurs twice: engines differ in which one counts.
    #[error("the key {key:?} stands in the body twice; send it once")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// A required field is missing, or a field has a form that its engine does not read.
    #[error("{field} is missing or of the wrong form: expected {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// The expected form.
        expected: &'static str,
    },
    /// No model, or not a text.
    #[error("model is {found}, expected a non-empty string; name a model that /v1/models lists")]
    Model {
        /// The value in its place.
        found: &'static str,
    },
}

impl ViewError {
    /// Returns the code of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Json(_) | Self::Utf8 { .. } => ErrorCode::InvalidJson,
            Self::NotAnObject | Self::Field { .. } | Self::Model { .. } => {
                ErrorCode::InvalidRequest
            }
            Self::DuplicateKey { .. } => ErrorCode::DuplicateKey,
        }
    }

    /// Returns the field at fault, if there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::DuplicateKey { key } => Some(key),
            Self::Field { field, .. } => Some(field),
            Self::Model { .. } => Some("model"),
            _ => None,
        }
    }
}

impl From<ViewError> for ApiError {
    fn from(error: ViewError) -> Self {
        let answer = Self::new(error.code(), error.to_string());
        match error.param() {
            Some(param) => answer.param(param),
            None => answer,
        }
    }
}
