//! Encodes replies in the requested encoding.

use api::ConductorError;
use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::{error::CallError, field_map::Encoding, msgpack};

/// Returns the encoding of the body: msgpack if its content type is msgpack, else JSON.
pub(crate) fn body_encoding(headers: &HeaderMap) -> Encoding {
    if headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| names_msgpack(value.as_bytes()))
    {
        Encoding::Msgpack
    } else {
        Encoding::Json
    }
}

/// Returns the encoding of the reply: from `accept` if it names one of the two, else that of the
/// body.
pub(crate) fn reply_encoding(headers: &HeaderMap) -> Encoding {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let mut named = accepts
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|kind| {
            if names_msgpack(kind) {
                Some(Encoding::Msgpack)
            } else {
                media_type(kind)
                    .eq_ignore_ascii_case(b"application/json")
                    .then_some(Encoding::Json)
            }
        });
    named.next().unwrap_or_else(|| body_encoding(headers))
}

fn names_msgpack(value: &[u8]) -> bool {
    let names: [&[u8]; 3] = [
        b"application/msgpack",
        b"application/x-msgpack",
        b"application/vnd.msgpack",
    ];
    names
        .iter()
        .any(|name| media_type(value).eq_ignore_ascii_case(name))
}

/// Returns a media type without its parameters.
fn media_type(value: &[u8]) -> &[u8] {
    value
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii()
}

/// Builds the HTTP reply in this encoding.
pub(crate) fn reply<T: Serialize>(result: Result<T, CallError>, encoding: Encoding) -> Response {
    let (status, (kind, body)) = match result {
        Ok(value) => (StatusCode::OK, encode(&value, encoding)),
        Err(error) => {
            let status = error.status();
            let error = ConductorError {
                error: error.message,
                field: error.field.map(Into::into),
            };
            (status, encode(&error, encoding))
        }
    };
    let mut response = (
        status,
        [(header::CONTENT_TYPE, HeaderValue::from_static(kind))],
        body,
    )
        .into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Returns the content type and the body. Our own types have string keys and no floats that JSON
/// lacks.
fn encode(value: &impl Serialize, encoding: Encoding) -> (&'static str, Vec<u8>) {
    match encoding {
        Encoding::Json => (
            "application/json",
            serde_json::to_vec(value).unwrap_or_default(),
        ),
        Encoding::Msgpack => {
            let mut body = Vec::new();
            let value = serde_json::to_value(value).unwrap_or_default();
            msgpack::write(&value, &mut body);
            ("application/msgpack", body)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_the_accepted_content_type_or_that_of_the_body() {
        let both = |content: &'static str, accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            (body_encoding(&headers), reply_encoding(&headers))
        };
        use Encoding::{Json, Msgpack};
        assert_eq!(both("application/json", "*/*"), (Json, Json));
        assert_eq!(both("application/msgpack", "*/*"), (Msgpack, Msgpack));
        assert_eq!(
            both("Application/X-Msgpack; v=1", "application/json"),
            (Msgpack, Json)
        );
        assert_eq!(
            both("text/plain", "text/html, application/msgpack;q=0.5"),
            (Json, Msgpack)
        );
        assert_eq!(body_encoding(&HeaderMap::new()), Json);
    }
}
