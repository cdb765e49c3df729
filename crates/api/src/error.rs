//! Errors in OpenAI's shape, as every route of the admin listener answers them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// Body of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReply {
    /// The error.
    pub error: ErrorDetails,
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetails {
    /// The thing, its value, what is expected and the next step.
    pub message: String,
    /// Class of the error.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = [
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "rate_limit_error",
        "upstream_error", "overloaded_error", "server_error",
    ]))]
    pub kind: Name,
    /// The field or header that the error is about.
    pub param: Option<String>,
    /// Stable code of the error, for programs.
    pub code: Name,
    /// Id of the request, also in `x-request-id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}
