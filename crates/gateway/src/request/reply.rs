//! Replies: their heads, and the bodies that are not relayed.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use dialect::ApiError;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::{Body, Frame, SizeHint};
use proxy::headers::{self, REQUEST_ID};
use serde::Serialize;

use super::{FillingBody, compat_headers, record::RequestGuard, relay::ReplyRelay};
use crate::{coalesce::SharedBody, routes::ErrorShape};

/// The body of a reply.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// Bytes of the router, or a worker's whole reply with the request's guard, which is settled
    /// after the last byte.
    Whole(Option<Bytes>, Option<Box<RequestGuard>>),
    /// A worker's reply that is being relayed.
    Relay(Box<ReplyRelay>),
    /// A reply that other requests may read too.
    Shared(Box<SharedBody>),
    /// A reply that is cached if the client gets all of it.
    Kept(Box<FillingBody>),
}

impl ReplyBody {
    pub(crate) fn empty() -> Self {
        Self::Whole(None, None)
    }

    fn own(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()), None)
    }

    pub(crate) fn whole(bytes: Bytes, mut settle: RequestGuard) -> Self {
        if bytes.is_empty() {
            // hyper never polls an empty body.
            settle.complete();
            return Self::empty();
        }
        Self::Whole(Some(bytes), Some(Box::new(settle)))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes, settle) => {
                if let Some(mut settle) = settle.take() {
                    settle.complete();
                }
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Relay(relay) => Pin::new(relay.as_mut()).poll_frame(cx),
            Self::Shared(shared) => Pin::new(shared.as_mut()).poll_frame(cx),
            Self::Kept(kept) => Pin::new(kept.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes, _) => bytes.is_none(),
            Self::Relay(relay) => relay.is_end_stream(),
            Self::Shared(shared) => shared.is_end_stream(),
            Self::Kept(kept) => kept.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes, _) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Self::Relay(relay) => relay.size_hint(),
            Self::Shared(shared) => shared.size_hint(),
            Self::Kept(kept) => kept.size_hint(),
        }
    }
}

/// Builds the head of a relayed reply.
pub(crate) fn head(worker: &Parts, settle: &RequestGuard) -> (StatusCode, HeaderMap) {
    let mut fields = headers::reply_head(&worker.headers);
    insert(
        &mut fields,
        HeaderName::from_static(REQUEST_ID),
        settle.request_id(),
    );
    add_routing_headers(&mut fields, settle);
    (worker.status, fields)
}

/// Adds headers about the routing: worker, policy, decision id, and predicted cached tokens.
pub(crate) fn add_routing_headers(fields: &mut HeaderMap, settle: &RequestGuard) {
    let shown = settle.reply_headers();
    if shown.expose && shown.vllm_router {
        compat_headers::hooks(fields, settle);
    }
    let Some(won) = settle.selection() else {
        return;
    };
    add_rewrite_header(fields, settle.rewrites());
    if !shown.expose {
        return;
    }
    insert(
        fields,
        HeaderName::from_static("x-warmroute-worker"),
        &won.worker,
    );
    insert(
        fields,
        HeaderName::from_static("x-warmroute-policy"),
        won.policy,
    );
    insert(
        fields,
        HeaderName::from_static("x-warmroute-decision"),
        &settle.id().to_string(),
    );
    fields.insert(
        "x-warmroute-predicted-cached-tokens",
        HeaderValue::from(won.predicted_cached_tokens),
    );
    if shown.vllm_router {
        compat_headers::vllm_router(fields, settle, won);
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
    if !error.is_retryable() {
        fields.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    response
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

/// Sets a header, unless the value is invalid in one.
pub(super) fn insert(fields: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        fields.insert(name, value);
    }
}
