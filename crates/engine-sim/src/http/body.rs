//! Reply bodies.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::Value;

/// Any body.
pub(crate) type SimBody = UnsyncBoxBody<Bytes, ConnectionCut>;

/// The connection is cut at this point.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut on purpose")]
pub(crate) struct ConnectionCut;

/// Returns a JSON reply.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response<SimBody> {
    bytes(status, "application/json", value.to_string().into())
}

/// Returns a reply of known length.
pub(crate) fn bytes(
    status: StatusCode,
    content_type: &'static str,
    bytes: Bytes,
) -> Response<SimBody> {
    let body = Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    with_type(status, content_type, body)
}

/// Returns a reply of chunks, sent as they arrive.
pub(crate) fn chunks(
    content_type: &'static str,
    chunks: impl Stream<Item = Result<Bytes, ConnectionCut>> + Send + 'static,
) -> Response<SimBody> {
    let body = StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync();
    with_type(StatusCode::OK, content_type, body)
}

fn with_type(status: StatusCode, content_type: &'static str, body: SimBody) -> Response<SimBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
