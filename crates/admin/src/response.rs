//! Replies of the listener.

use axum::{
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use dialect::{ApiError, ErrorCode};
use net::server::FramingError;
use serde::Serialize;

/// Builds a JSON reply.
pub(crate) fn json(value: &impl Serialize) -> Response {
    // Our own types have string keys and no floats that JSON lacks.
    raw(
        "application/json",
        serde_json::to_vec(value).unwrap_or_default(),
    )
}

/// Builds a reply of another content type.
pub(crate) fn raw(content_type: &'static str, body: Vec<u8>) -> Response {
    (
        [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))],
        body,
    )
        .into_response()
}

/// Builds an error reply in the shape of the error table.
pub(crate) fn error(error: &ApiError) -> Response {
    let id = format!("req-{:016x}", runtime::random());
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, raw("application/json", error.openai_body(&id))).into_response();
    let fields = response.headers_mut();
    if let Ok(id) = HeaderValue::try_from(id) {
        fields.insert("x-request-id", id);
    }
    if !error.is_retryable() {
        fields.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    with_retry_after(error, response)
}

/// Adds the time after which a call may be tried again, if the error has one.
pub(crate) fn with_retry_after(error: &ApiError, mut response: Response) -> Response {
    if let Some(seconds) = error.retry_after() {
        let seconds = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

/// Builds the reply to a request of which another server could see another end. The connection
/// closes: the next request cannot be told from its body.
pub(crate) fn refused_framing(refused: FramingError) -> Response {
    let mut response = error(&ApiError::new(
        ErrorCode::InvalidRequest,
        refused.to_string(),
    ));
    close_connection(response.headers_mut());
    response
}

/// Closes the connection after the reply with these headers.
pub(crate) fn close_connection(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
}

pub(crate) async fn unknown_route(uri: Uri) -> Response {
    error(&ApiError::new(
        ErrorCode::UnknownRoute,
        format!("no route {} on the admin listener", shown_path(&uri)),
    ))
}

/// The reply of the metrics listener to any other path.
pub(crate) async fn only_metrics(uri: Uri) -> Response {
    let path = shown_path(&uri);
    error(&ApiError::new(
        ErrorCode::UnknownRoute,
        format!(
            "no route {path} on the metrics listener: it answers GET /metrics, the admin listener the rest"
        ),
    ))
}

pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let path = shown_path(&uri);
    error(&ApiError::new(
        ErrorCode::MethodNotAllowed,
        format!("{path} does not answer {method}: use GET"),
    ))
}

/// Returns a path for a message: short, and without control characters.
fn shown_path(uri: &Uri) -> String {
    let path = uri.path().chars();
    path.filter(|c| !c.is_control()).take(100).collect()
}
