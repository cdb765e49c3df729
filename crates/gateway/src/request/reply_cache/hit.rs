//! Replies without a worker: cached ones, and those of another request.

use std::sync::Arc;

use bytes::Bytes;
use dialect::Dialect;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use proxy::headers::{REQUEST_ID, insert};
use response_cache::{CacheEntry, EntryKind};
use routing::{
    Method,
    receipt::{PromptNote, PromptSource},
};

use super::{
    cacheability::{BodyCacheability, CacheRequest, RequestedForm},
    parts::ReplyCache,
    status::{CacheReason, CacheStatus},
};
use crate::{
    coalesce::SharedBody,
    request::{
        accept::AcceptedRequest, receipt::RequestFacts, record::RequestGuard, reply,
        reply_body::ReplyBody,
    },
};

/// A longer body is parsed off the runtime thread.
const LONG: usize = 16 * 1024;

/// A cached reply in the requested form.
pub(super) struct HitReply {
    body: Bytes,
    stream: bool,
    stored_at: u64,
    /// Similarity to the question of the cached reply; `None`: an exact hit.
    pub(super) similarity: Option<f64>,
}

impl HitReply {
    /// Returns `None` if it cannot answer this request.
    pub(super) async fn of(
        dialect: Dialect,
        entry: CacheEntry,
        said: &BodyCacheability,
    ) -> Option<Self> {
        let label = EntryKind::read(entry.label, dialect)?;
        let (body, stream) = match said.answer {
            RequestedForm::Whole if label.is_complete_reply() => (entry.body, false),
            RequestedForm::Stream { usage } => (replayed(dialect, entry.body, usage).await?, true),
            RequestedForm::Whole | RequestedForm::OtherStream => return None,
        };
        Some(Self {
            body,
            stream,
            stored_at: entry.stored_at,
            similarity: None,
        })
    }

    /// Marks it as the reply to another question with the same meaning.
    pub(super) fn mark_similar(self, similarity: f64) -> Self {
        Self {
            similarity: Some(similarity),
            ..self
        }
    }
}

async fn replayed(dialect: Dialect, body: Bytes, usage: bool) -> Option<Bytes> {
    let is_long = body.len() > LONG;
    let replay = move || dialect::replay(dialect, &body, usage).map(Bytes::from);
    if is_long {
        runtime::spawn_blocking(replay).await.ok().flatten()
    } else {
        replay()
    }
}

/// Answers with the cached reply.
pub(super) fn into_reply(
    cache: &ReplyCache,
    mut settle: RequestGuard,
    found: HitReply,
) -> Response<ReplyBody> {
    let method = if found.similarity.is_some() {
        Method::SemanticHit
    } else {
        Method::CacheHit
    };
    settle.record_shared_reply(method, cache.router.policy(None), 200);
    let mut head = HeaderMap::with_capacity(8);
    let content_type = if found.stream {
        "text/event-stream"
    } else {
        "application/json"
    };
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if found.stream {
        head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    let now = u64::try_from(cache.clock.unix_s()).unwrap_or_default();
    head.insert(
        header::AGE,
        HeaderValue::from(now.saturating_sub(found.stored_at)),
    );
    reply::add_routing_headers(&mut head, &settle);
    let reason = if found.similarity.is_some() {
        CacheReason::Similar
    } else {
        CacheReason::Stored
    };
    CacheStatus::hit(reason).add_headers(&mut head, settle.reply_headers());
    under_own_name(&mut head, &settle, method);
    if let Some(similarity) = found.similarity {
        near(&mut head, &settle, similarity);
    }
    reply::with_head((StatusCode::OK, head), ReplyBody::whole(found.body, settle))
}

/// Answers with another request's reply, running or just finished.
pub(super) fn into_follower_reply(
    cache: &ReplyCache,
    mut settle: RequestGuard,
    (status, mut head, body): (StatusCode, HeaderMap, Box<SharedBody>),
) -> Response<ReplyBody> {
    settle.record_shared_reply(Method::Dedup, cache.router.policy(None), status.as_u16());
    CacheStatus::hit(CacheReason::Joined).add_headers(&mut head, settle.reply_headers());
    under_own_name(&mut head, &settle, Method::Dedup);
    reply::with_head((status, head), ReplyBody::live(body.settling(settle)))
}

/// Records what the receipt says about a request that no worker answers.
pub(super) fn set_facts(call: &AcceptedRequest, asked: &CacheRequest, settle: &mut RequestGuard) {
    if let Some(said) = &asked.body {
        settle.set_request_facts(RequestFacts {
            model: Arc::clone(&said.model),
            served_model: None,
            lora: None,
            stream: said.answer != RequestedForm::Whole,
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
fn under_own_name(head: &mut HeaderMap, settle: &RequestGuard, method: Method) {
    insert(
        head,
        HeaderName::from_static(REQUEST_ID),
        settle.request_id(),
    );
    let shown = settle.reply_headers();
    if shown.expose_routing_headers {
        insert(
            head,
            HeaderName::from_static("x-warmroute-decision"),
            &settle.id().to_string(),
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
fn near(head: &mut HeaderMap, settle: &RequestGuard, similarity: f64) {
    let (shown, similarity) = (settle.reply_headers(), format!("{similarity:.4}"));
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
