//! Errors of calls, with the codes of the HTTP API.

use std::{borrow::Cow, fmt::Display};

use config::Problem;
use dialect::{ApiError, ErrorCode};
use serde_json::Value;

/// The error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The code that a client of the HTTP API gets.
    pub code: Cow<'static, str>,
    /// The message for people.
    pub message: String,
}

impl CallError {
    /// Returns an error with this code.
    pub(super) fn new(code: ErrorCode, message: impl Display) -> Self {
        Self {
            code: code.as_str().into(),
            message: message.to_string(),
        }
    }

    /// Returns the error of a configuration, with all of its problems.
    pub(super) fn of_problems(problems: &[Problem]) -> Self {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Self::new(ErrorCode::InvalidRequest, lines.join("\n"))
    }

    /// Returns the error of a reply, or an event of a stream, with this body. An engine's own error
    /// has another kind of code, which its status replaces.
    pub(super) fn of_reply(status: u16, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = &body["error"];
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        let usual = if (400..500).contains(&status) {
            ErrorCode::InvalidRequest
        } else {
            ErrorCode::UpstreamProtocol
        };
        Self {
            code: text("code").map_or_else(|| usual.as_str().into(), Cow::Owned),
            message: text("message").unwrap_or_else(|| format!("the reply has status {status}")),
        }
    }
}

impl From<ApiError> for CallError {
    fn from(error: ApiError) -> Self {
        Self {
            code: error.code.as_str().into(),
            message: error.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_reply_has_its_code_or_the_one_of_its_status() {
        let ours = br#"{"error":{"message":"no such model","code":"model_not_found"}}"#;
        let engines = br#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
        for (status, body, code, message) in [
            (404, &ours[..], "model_not_found", "no such model"),
            (400, &engines[..], "invalid_request", "too long"),
            (
                502,
                &b"<html>"[..],
                "upstream_protocol",
                "the reply has status 502",
            ),
        ] {
            let error = CallError::of_reply(status, body);
            assert_eq!((&*error.code, &*error.message), (code, message));
        }
    }
}
