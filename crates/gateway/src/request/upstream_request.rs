//! The request that a worker gets: the client's bytes under a head of the router.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use proxy::{BodyRest, headers};

use super::{accept::AcceptedRequest, dispatch::AttemptTarget};

/// Builds the request for the worker: the body, spliced or not, under a head of the router.
pub(super) fn upstream_request(
    call: &AcceptedRequest,
    bytes: Bytes,
    to: &AttemptTarget,
) -> Request<Bytes> {
    let AttemptTarget {
        worker,
        target,
        span,
    } = to;
    let host = HeaderValue::try_from(worker.connection.url.authority())
        .unwrap_or(HeaderValue::from_static("localhost"));
    let mut fields = headers::upstream_head(&call.headers, host, worker.credentials());
    // A request that has no body by its method announces none.
    if call.method == Method::POST
        && let Some(length) = body_length(call, &bytes)
    {
        fields.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Ok(id) = HeaderValue::try_from(&*call.request_id) {
        fields.insert(headers::REQUEST_ID, id);
    }
    if let Some(span) = span {
        headers::insert(&mut fields, headers::TRACEPARENT, &span.to_string());
    }
    if call.upgrade.is_some() {
        headers::add_websocket(&mut fields);
    }
    if worker.dp_ranks() > 1 {
        fields.insert(headers::DP_RANK, HeaderValue::from(target.rank.0));
    }
    let mut request = Request::new(bytes);
    *request.method_mut() = call.method.clone();
    // The route table matched the path byte for byte: joined to the worker's base URL it is a valid
    // target.
    *request.uri_mut() = worker
        .connection
        .url
        .path(call.target.as_str())
        .parse()
        .unwrap_or_else(|_| Uri::from_static("/"));
    *request.headers_mut() = fields;
    request
}

/// Returns the length of a request's body; `None`: its client does not announce it.
fn body_length(call: &AcceptedRequest, first: &Bytes) -> Option<u64> {
    let rest = call.rest.as_ref().map_or(Some(0), BodyRest::announced);
    rest.map(|rest| rest + first.len() as u64)
}
