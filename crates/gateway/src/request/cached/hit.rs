//! Replies that no worker is asked for.

use std::sync::Arc;

use bytes::Bytes;
use dialect::Dialect;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use response_cache::Entry;
use routing::{
    Method,
    receipt::{PromptNote, PromptSource},
};

use super::{
    asked::{Asked, Form, Said},
    status::{Reason, Status},
};
use crate::{
    Gateway,
    alike::SharedBody,
    ids::REQUEST_ID,
    keeper::Label,
    request::{
        accept::Call,
        receipt::About,
        reply::{self, ReplyBody},
        settle::Settle,
    },
};

/// A longer one would hold up others on this thread.
const LONG: usize = 16 * 1024;

/// A kept reply in the form that this request asks for.
pub(super) struct Found {
    body: Bytes,
    stream: bool,
    stored_at: u64,
    /// How near its question is to this one; `None`: it is the same.
    pub(super) similarity: Option<f64>,
}

impl Found {
    /// `None` if it cannot answer this request.
    pub(super) async fn of(dialect: Dialect, entry: Entry, said: &Said) -> Option<Self> {
        let label = Label::read(entry.label, dialect)?;
        let (body, stream) = match said.answer {
            Form::Whole if label.has_what_whole_replies_have() => (entry.body, false),
            Form::Stream { usage } => (replayed(dialect, entry.body, usage).await?, true),
            Form::Whole | Form::OtherStream => return None,
        };
        Some(Self {
            body,
            stream,
            stored_at: entry.stored_at,
            similarity: None,
        })
    }

    /// It is the reply to another question that means the same.
    pub(super) fn alike(self, similarity: f64) -> Self {
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
        tokio::task::spawn_blocking(replay).await.ok().flatten()
    } else {
        replay()
    }
}

/// Answers with a kept reply.
pub(super) fn answer(
    gateway: &Gateway,
    call: &Call,
    asked: &Asked,
    mut settle: Settle,
    found: Found,
) -> Response<ReplyBody> {
    about(call, asked, &mut settle);
    let method = if found.similarity.is_some() {
        Method::SemanticHit
    } else {
        Method::CacheHit
    };
    settle.answered_by(method, gateway.router.policy(None), 200);
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
    let now = u64::try_from(gateway.clock.unix_s()).unwrap_or_default();
    head.insert(
        header::AGE,
        HeaderValue::from(now.saturating_sub(found.stored_at)),
    );
    reply::explain(&mut head, &settle);
    let reason = if found.similarity.is_some() {
        Reason::Similar
    } else {
        Reason::Stored
    };
    Status::hit(reason).tell(&mut head, settle.reply_headers());
    under_own_name(&mut head, &settle, method);
    if let Some(similarity) = found.similarity {
        near(&mut head, &settle, similarity);
    }
    reply::with_head((StatusCode::OK, head), ReplyBody::whole(found.body, settle))
}

/// Answers with another request's reply, which is on its way or was the last one of its kind.
pub(super) fn joined(
    gateway: &Gateway,
    call: &Call,
    asked: &Asked,
    mut settle: Settle,
    (status, mut head, body): (StatusCode, HeaderMap, Box<SharedBody>),
) -> Response<ReplyBody> {
    about(call, asked, &mut settle);
    settle.answered_by(Method::Dedup, gateway.router.policy(None), status.as_u16());
    Status::hit(Reason::Joined).tell(&mut head, settle.reply_headers());
    under_own_name(&mut head, &settle, Method::Dedup);
    reply::with_head(
        (status, head),
        ReplyBody::Shared(Box::new(body.settling(settle))),
    )
}

fn about(call: &Call, asked: &Asked, settle: &mut Settle) {
    if let Some(said) = &asked.said {
        settle.about(About {
            model: Arc::clone(&said.model),
            served_model: None,
            lora: None,
            stream: said.answer != Form::Whole,
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

/// The request's own id and decision, whoever was asked.
fn under_own_name(head: &mut HeaderMap, settle: &Settle, method: Method) {
    reply::insert(
        head,
        HeaderName::from_static(REQUEST_ID),
        settle.request_id(),
    );
    let shown = settle.reply_headers();
    if shown.expose {
        reply::insert(
            head,
            HeaderName::from_static("x-warmroute-decision"),
            &settle.id().to_string(),
        );
        if shown.vllm_router {
            let method = if method == Method::SemanticHit {
                "semantic-hit"
            } else {
                "cache-hit"
            };
            head.insert("x-vllm-router-method", HeaderValue::from_static(method));
        }
    }
}

/// How near the question is that the reply was to.
fn near(head: &mut HeaderMap, settle: &Settle, similarity: f64) {
    let (shown, similarity) = (settle.reply_headers(), format!("{similarity:.4}"));
    if shown.expose {
        reply::insert(
            head,
            HeaderName::from_static("x-warmroute-cache-similarity"),
            &similarity,
        );
        if shown.vllm_router {
            reply::insert(
                head,
                HeaderName::from_static("x-vllm-router-cache-similarity"),
                &similarity,
            );
        }
    }
}
