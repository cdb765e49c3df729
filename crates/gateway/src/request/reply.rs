//! Replies: their heads, and the bodies that are not relayed.

use dialect::{ApiError, ErrorCode};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use proxy::headers::{self, REQUEST_ID, insert};
use serde::Serialize;

use super::{
    attempt_failure::FinalError, compat_headers, record::RequestGuard, reply_body::ReplyBody,
};
use crate::{metrics::Metrics, routes::ErrorShape};

/// Builds the head of a relayed reply.
pub(crate) fn head(worker: &Parts, guard: &RequestGuard) -> (StatusCode, HeaderMap) {
    let mut fields = headers::reply_head(&worker.headers);
    insert(
        &mut fields,
        HeaderName::from_static(REQUEST_ID),
        guard.request_id(),
    );
    add_routing_headers(&mut fields, guard);
    (worker.status, fields)
}

/// Adds headers about the routing: worker, policy, decision id, and predicted cached tokens.
pub(crate) fn add_routing_headers(fields: &mut HeaderMap, guard: &RequestGuard) {
    let shown = guard.reply_headers();
    if guard.shows_decision() && shown.vllm_router_headers() {
        compat_headers::hooks(fields, guard);
    }
    let Some(selection) = guard.selection() else {
        return;
    };
    add_rewrite_header(fields, guard.rewrites());
    if !guard.shows_decision() {
        return;
    }
    insert(
        fields,
        HeaderName::from_static("x-warmroute-worker"),
        &selection.worker,
    );
    if let Some(policy) = selection.policy {
        fields.insert(
            HeaderName::from_static("x-warmroute-policy"),
            HeaderValue::from_static(policy.as_str()),
        );
    }
    insert(
        fields,
        HeaderName::from_static("x-warmroute-decision"),
        &guard.id().to_string(),
    );
    fields.insert(
        HeaderName::from_static("x-warmroute-predicted-cached-tokens"),
        HeaderValue::from(selection.predicted_cached_tokens),
    );
    if shown.vllm_router_headers() {
        compat_headers::vllm_router(fields, guard, selection);
    }
}

/// Lists the rewrites of the client's body, if any.
pub(super) fn add_rewrite_header(fields: &mut HeaderMap, rewrites: &[&str]) {
    if !rewrites.is_empty() {
        insert(
            fields,
            HeaderName::from_static("x-warmroute-rewrites"),
            &rewrites.join(","),
        );
    }
}

pub(crate) fn with_head(
    (status, fields): (StatusCode, HeaderMap),
    body: ReplyBody,
) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

/// Builds an error in the shape of the route.
pub(crate) fn error(error: &ApiError, shape: ErrorShape, request_id: &str) -> Response<ReplyBody> {
    let mut response = bytes(error.status, shape.body(error, request_id), request_id);
    let fields = response.headers_mut();
    if let Some(seconds) = error.retry_after() {
        fields.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(limit) = &error.rate_limit {
        insert(fields, HeaderName::from_static("x-ratelimit-limit"), limit);
    }
    if !error.is_retryable() {
        fields.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    response
}

/// Answers the client with an error of the router.
pub(super) fn refused(mut guard: Box<RequestGuard>, error: &ApiError) -> Response<ReplyBody> {
    guard.record_own_error(error);
    let mut response = self::error(error, guard.error_shape(), guard.request_id());
    add_routing_headers(response.headers_mut(), &guard);
    response
}

/// Answers the client with the last failure when no further attempt follows.
pub(super) fn last_failure(
    mut guard: Box<RequestGuard>,
    failure: FinalError,
) -> Response<ReplyBody> {
    match failure {
        FinalError::Error(error) => refused(guard, &error),
        FinalError::Pass(head, bytes) => {
            guard.record_passthrough(head.status.as_u16());
            let head = self::head(&head, &guard);
            with_head(head, ReplyBody::whole(bytes, guard))
        }
    }
}

/// Builds the reply of a request whose handling panicked.
pub(super) fn panicked(
    metrics: &Metrics,
    shape: ErrorShape,
    request_id: &str,
) -> Response<ReplyBody> {
    metrics.requests.panics.inc();
    let message = "the router failed on this request; see its log";
    error(
        &ApiError::new(ErrorCode::Internal, message),
        shape,
        request_id,
    )
}

/// Adds the methods that the path supports, if any.
pub(crate) fn with_allow(
    methods: Option<&'static str>,
    mut response: Response<ReplyBody>,
) -> Response<ReplyBody> {
    if let Some(methods) = methods {
        response
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    response
}

/// Closes the connection after the reply unless the request's body was read to its end: the next
/// request could not be told apart from the rest of that body.
pub(crate) fn close_unless(
    drained: bool,
    mut response: Response<ReplyBody>,
) -> Response<ReplyBody> {
    if !drained {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Adds the request id, also under the name that Anthropic's clients read on their routes.
pub(crate) fn with_request_id(
    shape: ErrorShape,
    request_id: &str,
    mut response: Response<ReplyBody>,
) -> Response<ReplyBody> {
    if shape == ErrorShape::Anthropic {
        insert(
            response.headers_mut(),
            HeaderName::from_static("request-id"),
            request_id,
        );
    }
    response
}

/// Builds a JSON reply of the router.
pub(crate) fn json(status: u16, value: &impl Serialize, request_id: &str) -> Response<ReplyBody> {
    // The router's own types have string keys and no floats outside JSON.
    bytes(
        status,
        serde_json::to_vec(value).unwrap_or_default(),
        request_id,
    )
}

/// Builds a JSON reply from serialized bytes.
pub(super) fn bytes(status: u16, body: Vec<u8>, request_id: &str) -> Response<ReplyBody> {
    let mut fields = HeaderMap::with_capacity(4);
    fields.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    insert(&mut fields, HeaderName::from_static(REQUEST_ID), request_id);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    with_head((status, fields), ReplyBody::own(body))
}

#[cfg(test)]
mod tests;
