//! Translates a worker's own error into the shape of Anthropic's errors.

use crate::{RawJson, api_error::anthropic_error, json};

/// Translates the error body of a chat with this status, for a client that sent a messages request.
/// The error's message stays: it is about the client's request.
///
/// ```
/// let reply = br#"{"error":{"message":"max_tokens is 0","type":"BadRequestError"}}"#;
/// assert_eq!(
///     String::from_utf8(dialect::error_from_chat(400, reply, "req-1")).unwrap(),
///     r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens is 0"},"request_id":"req-1"}"#
/// );
/// ```
pub fn error_from_chat(status: u16, body: &[u8], request_id: &str) -> Vec<u8> {
    let reply = json::object(body);
    let message = reply.and_then(|reply| {
        let text = |object: RawJson<'_>| {
            object
                .member("message")
                .and_then(RawJson::string)
                .map(|it| it.into_owned())
        };
        let error = reply.member("error");
        let plain = || error.and_then(RawJson::string).map(|it| it.into_owned());
        let detail = || {
            reply
                .member("detail")
                .map(|it| it.string().map_or_else(|| it.as_str().into(), Into::into))
        };
        error
            .and_then(text)
            .or_else(|| text(reply))
            .or_else(plain)
            .or_else(detail)
    });
    let message =
        message.unwrap_or_else(|| format!("the worker refused the request with status {status}"));
    anthropic_error(kind(status), &message, Some(request_id))
}

/// Builds an error inside a stream.
pub(super) fn in_stream(status: Option<u16>, message: &str) -> Vec<u8> {
    anthropic_error(kind(status.unwrap_or(500)), message, None)
}

fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}
