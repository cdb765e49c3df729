//! A worker's own refusal in the shape of Anthropic's errors.

use crate::{
    RawJson,
    json::{self, Object},
};

/// The words of a worker that answered a chat with this status, for a client that asked for a message. Its message stays:
/// it speaks of the client's request.
///
/// ```
/// let said = br#"{"error":{"message":"max_tokens is 0","type":"BadRequestError"}}"#;
/// assert_eq!(
///     String::from_utf8(dialect::error_from_chat(400, said, "req-1")).unwrap(),
///     r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens is 0"},"request_id":"req-1"}"#
/// );
/// ```
pub fn error_from_chat(status: u16, body: &[u8], request_id: &str) -> Vec<u8> {
    let said = std::str::from_utf8(body).ok().and_then(|text| json::whole(text).ok());
    let message = said.and_then(|said| {
        let text = |object: RawJson<'_>| object.member("message").and_then(RawJson::string).map(|it| it.into_owned());
        let error = said.member("error");
        let plain = || error.and_then(RawJson::string).map(|it| it.into_owned());
        let detail = || said.member("detail").map(|it| it.string().map_or_else(|| it.as_str().into(), Into::into));
        error.and_then(text).or_else(|| text(said)).or_else(plain).or_else(detail)
    });
    let message = message.unwrap_or_else(|| format!("the worker refused the request with status {status}"));
    write(kind(status), &message, Some(request_id))
}

/// The same of an error inside a stream.
pub(super) fn in_stream(status: Option<u16>, message: &str) -> Vec<u8> {
    write(kind(status.unwrap_or(500)), message, None)
}

fn write(kind: &str, message: &str, request_id: Option<&str>) -> Vec<u8> {
    let mut out = String::with_capacity(message.len() + 120);
    let mut object = Object::open(&mut out);
    object.text("type", "error");
    let mut error = object.object("error");
    error.text("type", kind);
    error.text("message", message);
    error.close();
    if let Some(id) = request_id {
        object.text("request_id", id);
    }
    object.close();
    out.into_bytes()
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
