//! Errors in vLLM's format.

use http::{Response, StatusCode};
use serde_json::json;

use super::{
    body::{self, SimBody},
    chat_api::ChatApi,
};

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SimApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl SimApiError {
    pub(crate) fn bad_request(
        message: impl Into<String>,
        param: impl Into<Option<&'static str>>,
    ) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.into(),
            param: param.into(),
        }
    }

    pub(crate) fn unknown_model(model: &str, known: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{model}` does not exist. Valid aliases: {known}."),
            param: Some("model"),
        }
    }

    pub(crate) fn unknown_response(id: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("Response with id {id} not found."),
            param: Some("previous_response_id"),
        }
    }

    pub(crate) fn prompt_too_long(longest: u32, prompt: u32) -> Self {
        Self::bad_request(
            format!(
                "This model's maximum context length is {longest} tokens. However, your prompt contains {prompt} input \
                 tokens, which leaves no room for output. Please shorten the prompt. (parameter=input_tokens, \
                 value={prompt})"
            ),
            "input_tokens",
        )
    }

    pub(crate) fn reply_too_long(longest: u32, prompt: u32, requested: u32) -> Self {
        let total = u64::from(prompt) + u64::from(requested);
        Self::bad_request(
            format!(
                "This model's maximum context length is {longest} tokens. However, you requested {requested} output tokens \
                 and your prompt contains {prompt} input tokens, {total} in all. Please ask for less of either. \
                 (parameter=input_tokens, value={prompt})"
            ),
            "input_tokens",
        )
    }

    pub(crate) fn body_too_large(most: usize) -> Self {
        Self {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            kind: "BadRequestError",
            message: format!("The request body is larger than {most} bytes."),
            param: None,
        }
    }

    /// Returns the error of an injected fault or a dead engine core.
    pub(crate) fn of_status(status: u16) -> Self {
        let (status, kind, message) = match status {
            429 => (
                StatusCode::TOO_MANY_REQUESTS,
                "RateLimitError",
                "Too many requests are queued.",
            ),
            503 => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailableError",
                "The engine is overloaded.",
            ),
            _ => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalServerError",
                "The engine core died unexpectedly.",
            ),
        };
        Self {
            status,
            kind,
            message: message.to_owned(),
            param: None,
        }
    }

    pub(crate) fn value(&self) -> serde_json::Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }})
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the error in Anthropic's format.
    pub(crate) fn anthropic(&self) -> serde_json::Value {
        let kind = match self.status.as_u16() {
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": self.message}})
    }

    /// Returns the error in the format of SGLang's own API.
    pub(crate) fn sglang(&self) -> serde_json::Value {
        json!({"error": {"message": self.message}})
    }

    pub(crate) fn into_response(self) -> Response<SimBody> {
        body::json(self.status, &self.value())
    }

    /// Returns the reply in the format of the called API.
    pub(crate) fn into_response_in(self, dialect: ChatApi) -> Response<SimBody> {
        match dialect {
            ChatApi::Messages => body::json(self.status, &self.anthropic()),
            ChatApi::SglangGenerate => body::json(self.status, &self.sglang()),
            _ => self.into_response(),
        }
    }
}
