//! Error bodies in the shape that each dialect's clients read.
//!
//! Texts come from the router alone: neither an engine's text nor an internal address belongs in
//! `message`.

use std::fmt;

use crate::{ErrorCode, json::ObjectWriter};

/// An error reply to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status; the code's own unless a worker's status is passed on.
    pub status: u16,
    /// The machine-readable code.
    pub code: ErrorCode,
    /// The message for people: thing, value, expected, next step.
    pub message: String,
    /// The field or header at fault.
    pub param: Option<String>,
    /// Seconds until a retry makes sense; see [`Self::retry_after`].
    pub retry_after_s: Option<u32>,
    /// The limit that was exceeded, for `X-RateLimit-Limit`.
    pub rate_limit: Option<Box<str>>,
    /// The cause in metrics, if several share a code. Clients do not see it.
    pub cause: Option<&'static str>,
}

impl ApiError {
    /// Returns an error with its code's status.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            status: code.status(),
            code,
            message: message.into(),
            param: None,
            retry_after_s: None,
            rate_limit: None,
            cause: None,
        }
    }

    /// Sets the field or header at fault.
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Sets a status other than the code's, as for a worker's own 500.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets the cause among those that share the code.
    #[must_use]
    pub fn because(mut self, cause: &'static str) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Returns the label in metrics: the cause, else the code.
    pub fn counted_as(&self) -> &'static str {
        self.cause.unwrap_or(self.code.as_str())
    }

    /// Sets the seconds until a retry.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Sets the limit that was exceeded.
    #[must_use]
    pub fn with_rate_limit(mut self, limit: impl fmt::Display) -> Self {
        self.rate_limit = Some(limit.to_string().into());
        self
    }

    /// Returns the value of `Retry-After`: always present on 429 and 503, within 1..=60, never on
    /// other statuses.
    pub fn retry_after(&self) -> Option<u32> {
        matches!(self.status, 429 | 503).then(|| self.retry_after_s.unwrap_or(1).clamp(1, 60))
    }

    /// Returns whether the same request may succeed later. If not, the reply carries
    /// `x-should-retry: false`.
    pub fn is_retryable(&self) -> bool {
        self.status == 429 || self.status >= 500
    }

    /// Returns the body on OpenAI-shaped routes and on the admin listener.
    ///
    /// ```
    /// use dialect::{ApiError, ErrorCode};
    ///
    /// let error = ApiError::new(ErrorCode::ModelNotFound, "no worker serves \"x\"");
    /// assert_eq!(
    ///     String::from_utf8(error.openai_body("req-1")).unwrap(),
    ///     r#"{"error":{"message":"no worker serves \"x\"","type":"not_found_error","param":null,"code":"model_not_found","request_id":"req-1"}}"#
    /// );
    /// ```
    pub fn openai_body(&self, request_id: &str) -> Vec<u8> {
        let error = OpenAiError {
            message: &self.message,
            kind: self.code.openai_type(),
            param: self.param.as_deref(),
            code: self.code.as_str(),
        };
        error.body(Some(request_id))
    }

    /// Returns the body on Anthropic-shaped routes.
    pub fn anthropic_body(&self, request_id: &str) -> Vec<u8> {
        anthropic_error(self.code.anthropic_type(), &self.message, Some(request_id))
    }

    /// Returns the last event of a cut OpenAI-shaped stream. No `[DONE]` may follow it.
    ///
    /// It starts with `data:`, so the bytes before it must end at an event's end (see
    /// [`crate::SseSplitter`]).
    pub fn stream_event(&self, request_id: &str) -> Vec<u8> {
        event(b"data: ", &self.openai_body(request_id))
    }

    /// Returns the last event of a cut Anthropic-shaped stream. No `message_stop` may follow it.
    pub fn anthropic_stream_event(&self, request_id: &str) -> Vec<u8> {
        event(b"event: error\ndata: ", &self.anthropic_body(request_id))
    }
}

/// An error as OpenAI's clients read it, from any source.
pub(crate) struct OpenAiError<'a> {
    pub(crate) message: &'a str,
    /// `error.type`.
    pub(crate) kind: &'a str,
    pub(crate) param: Option<&'a str>,
    pub(crate) code: &'a str,
}

impl OpenAiError<'_> {
    pub(crate) fn body(&self, request_id: Option<&str>) -> Vec<u8> {
        let mut body = String::with_capacity(160 + self.message.len());
        let mut object = ObjectWriter::open(&mut body);
        let mut error = object.object("error");
        error.text("message", self.message);
        error.text("type", self.kind);
        match self.param {
            Some(param) => error.text("param", param),
            None => error.raw("param", "null"),
        }
        error.text("code", self.code);
        if let Some(id) = request_id {
            error.text("request_id", id);
        }
        error.close();
        object.close();
        body.into_bytes()
    }
}

/// Builds an error as Anthropic's clients read it.
pub(crate) fn anthropic_error(kind: &str, message: &str, request_id: Option<&str>) -> Vec<u8> {
    let mut body = String::with_capacity(120 + message.len());
    let mut object = ObjectWriter::open(&mut body);
    object.text("type", "error");
    let mut error = object.object("error");
    error.text("type", kind);
    error.text("message", message);
    error.close();
    if let Some(id) = request_id {
        object.text("request_id", id);
    }
    object.close();
    body.into_bytes()
}

fn event(lead: &[u8], body: &[u8]) -> Vec<u8> {
    [lead, body, b"\n\n"].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn any_message_becomes_valid_json() {
        let message = "quote \" backslash \\ newline \n nul \0 bell \u{7} escape \u{1b} del \u{7f} line \u{2028} 😀 </script>";
        let error = ApiError::new(ErrorCode::InvalidRequest, message).param("a\"b");
        let body = read(&error.openai_body("id\n"));
        assert_eq!(
            body,
            json!({"error": {"message": message, "type": "invalid_request_error", "param": "a\"b", "code": "invalid_request", "request_id": "id\n"}})
        );
        assert_eq!(
            read(&error.anthropic_body("r"))["error"]["message"],
            message
        );
    }

    #[test]
    fn the_error_event_of_a_cut_stream_is_one_event_without_done() {
        let error = ApiError::new(ErrorCode::StreamInterrupted, "two\nlines\r\n\r\n");
        let event = String::from_utf8(error.stream_event("req-9")).unwrap();
        let data = event
            .strip_prefix("data: ")
            .unwrap()
            .strip_suffix("\n\n")
            .unwrap();
        assert!(!data.contains(['\n', '\r']));
        let body = read(data.as_bytes());
        assert_eq!(body["error"]["code"], "stream_interrupted");
        assert_eq!(body["error"]["type"], "upstream_error");
        assert_eq!(body["error"]["request_id"], "req-9");
        assert!(!event.contains("[DONE]") && !event.contains("finish_reason"));
    }

    #[test]
    fn an_anthropic_stream_ends_with_an_anthropic_error_event() {
        let event = ApiError::new(ErrorCode::Overloaded, "m").anthropic_stream_event("r");
        let text = String::from_utf8(event).unwrap();
        assert!(text.starts_with(
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\""
        ));
    }

    #[test]
    fn a_workers_status_may_replace_the_status_of_our_code() {
        let error = ApiError::new(ErrorCode::UpstreamProtocol, "m").with_status(500);
        assert_eq!(error.status, 500);
        assert!(error.is_retryable());
    }

    #[test]
    fn retry_after_is_1_to_60_whole_seconds_and_only_where_waiting_helps() {
        let at = |code, seconds| {
            ApiError::new(code, "m")
                .with_retry_after(seconds)
                .retry_after()
        };
        assert_eq!(at(ErrorCode::NoWorker, 0), Some(1));
        assert_eq!(at(ErrorCode::RateLimited, 3_600), Some(60));
        assert_eq!(at(ErrorCode::UpstreamReset, 5), None);
        assert_eq!(
            ApiError::new(ErrorCode::Draining, "m").retry_after(),
            Some(1)
        );
    }
}
