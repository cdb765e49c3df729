//! Replies without a worker: cached ones, and those of another request.

use std::sync::Arc;

use dialect::ErrorCode;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use proxy::headers::{REQUEST_ID, insert};
use response_cache::{CacheReason, Eligibility, FlightEnd, HitReply, RequestedForm, SharedBody};
use routing::{
    Method,
    receipt::{PromptNote, PromptSource},
};

use super::{add_cache_headers, parts::ReplyCache};
use crate::request::{
    accept::AcceptedRequest, receipt::RequestFacts, record::RequestGuard, reply,
    reply_body::ReplyBody,
};

/// Answers with the cached reply.
pub(super) fn into_reply(
    cache: &ReplyCache,
    mut guard: Box<RequestGuard>,
    found: HitReply,
) -> Response<ReplyBody> {
    let method = if found.similarity.is_some() {
        Method::SemanticHit
    } else {
        Method::CacheHit
    };
    guard.record_shared_reply(method, cache.router.policy(None), 200);
    let mut head = HeaderMap::with_capacity(8);
    let content_type = if found.is_stream {
        "text/event-stream"
    } else {
        "application/json"
    };
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if found.is_stream {
        head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    let now = u64::try_from(cache.clock.unix_s()).unwrap_or_default();
    head.insert(
        header::AGE,
        HeaderValue::from(now.saturating_sub(found.stored_at)),
    );
    reply::add_routing_headers(&mut head, &guard);
    let reason = if found.similarity.is_some() {
        CacheReason::Similar
    } else {
        CacheReason::Stored
    };
    add_cache_headers(reason, &mut head, guard.reply_headers());
    under_own_name(&mut head, &guard, method);
    if let Some(similarity) = found.similarity {
        near(&mut head, &guard, similarity);
    }
    reply::with_head((StatusCode::OK, head), ReplyBody::whole(found.body, guard))
}

/// Answers with another request's reply, running or just finished.
pub(super) fn into_follower_reply(
    cache: &ReplyCache,
    mut guard: Box<RequestGuard>,
    mut reply: Response<SharedBody<ReplyBody>>,
) -> Response<ReplyBody> {
    let status = reply.status().as_u16();
    guard.record_shared_reply(Method::Dedup, cache.router.policy(None), status);
    let head = reply.headers_mut();
    add_cache_headers(CacheReason::Joined, head, guard.reply_headers());
    under_own_name(head, &guard, Method::Dedup);
    let on_end = move |end| match end {
        FlightEnd::Clean => guard.complete(),
        FlightEnd::Broken => guard.record_cut(ErrorCode::StreamInterrupted, None),
    };
    reply.map(|body| ReplyBody::live(body.on_end(on_end)))
}

/// Records what the receipt says about a request that no worker answers.
pub(super) fn set_facts(
    call: &AcceptedRequest,
    eligibility: &Eligibility<'_>,
    guard: &mut RequestGuard,
) {
    if let Some(body) = &eligibility.body {
        guard.set_request_facts(RequestFacts {
            model: Arc::clone(&body.model),
            served_model: None,
            lora: None,
            stream: body.form != RequestedForm::Whole,
            body_streamed: false,
            priority: call.overrides.priority,
            cluster: None,
            prompt: PromptNote {
                source: PromptSource::None,
                tokens: 0,
                new_tokens: 0,
            },
        });
    }
}

/// Sets the request's own id and decision in the head.
fn under_own_name(head: &mut HeaderMap, guard: &RequestGuard, method: Method) {
    insert(
        head,
        HeaderName::from_static(REQUEST_ID),
        guard.request_id(),
    );
    let shown = guard.reply_headers();
    if guard.shows_decision() {
        insert(
            head,
            HeaderName::from_static("x-warmroute-decision"),
            &guard.id().to_string(),
        );
        if shown.vllm_router_headers() {
            let method = if method == Method::SemanticHit {
                "semantic-hit"
            } else {
                "cache-hit"
            };
            head.insert("x-vllm-router-method", HeaderValue::from_static(method));
        }
    }
}

/// Adds the similarity to the head.
fn near(head: &mut HeaderMap, guard: &RequestGuard, similarity: f64) {
    let (shown, similarity) = (guard.reply_headers(), format!("{similarity:.4}"));
    if shown.expose_routing_headers {
        insert(
            head,
            HeaderName::from_static("x-warmroute-cache-similarity"),
            &similarity,
        );
        if shown.vllm_router_headers() {
            insert(
                head,
                HeaderName::from_static("x-vllm-router-cache-similarity"),
                &similarity,
            );
        }
    }
}
