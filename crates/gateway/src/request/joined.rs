//! Before the stages of a generation: is another request like it under way, or just answered?

use std::{panic::AssertUnwindSafe, sync::Arc};

use dialect::{Dialect, Repeated};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use routing::receipt::{PromptNote, PromptSource};

use super::{
    accept::{Call, Overrides},
    receipt::About,
    reply::{self, ReplyBody},
    settle::Settle,
};
use crate::{
    Gateway,
    alike::{Joined, Key, Place, SharedBody},
    ids::REQUEST_ID,
    routes::Shape,
};

/// Headers that change what engines answer.
const RELEVANT: [&str; 2] = ["anthropic-beta", "anthropic-version"];
/// A longer body is sent by itself: its digest would hold up others.
const LONGEST_BODY: usize = 256 * 1024;

/// The generation, sent once for all that are alike.
pub(super) async fn generate(
    gateway: &Arc<Gateway>,
    mut call: Call,
    dialect: Dialect,
    mut settle: Settle,
) -> Response<ReplyBody> {
    // What an engine keeps of a response is for one client to go on from.
    let shared = dialect != Dialect::Responses && gateway.rules.deduplication.is_some();
    let place = if shared { key(&call).map(|key| gateway.alike.enter(key)) } else { None };
    match place {
        None => super::generate(gateway, call, dialect, settle).await,
        Some(Place::First(seat)) => {
            // Others may get the reply who cannot read it otherwise.
            call.headers.remove(header::ACCEPT_ENCODING);
            settle.tells_whether_good(seat.good());
            let (gateway, request_id) = (Arc::clone(gateway), Arc::clone(&call.request_id));
            let shape = Shape::of(call.target.path());
            // A panic costs the one request that had it: the others, who may have been driving it, send their own.
            let reply = async move {
                let own = AssertUnwindSafe(super::generate(&gateway, call, dialect, settle)).catch_unwind();
                own.await.unwrap_or_else(|_| super::panicked(&gateway, shape, &request_id))
            };
            seat.lead(Box::pin(reply)).await
        }
        Some(Place::Joins(seat)) => match seat.join().await {
            Joined::Reply(status, head, body) => joined(gateway, &call, dialect, settle, (status, head, body)),
            Joined::Nothing => super::generate(gateway, call, dialect, settle).await,
        },
    }
}

/// `None` for a request that is to be sent by itself: one that asks for no repeatable answer, or for a certain way.
fn key(call: &Call) -> Option<Key> {
    let body = call.body.bytes();
    let own_way = call.overrides != Overrides::default();
    let fresh = call
        .headers
        .get_all(header::CACHE_CONTROL)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.contains("no-store") || value.contains("no-cache")));
    if own_way || fresh || body.len() > LONGEST_BODY {
        return None;
    }
    let repeated = Repeated::read(body).filter(Repeated::asks_repeatable)?;
    let headers: Vec<(&str, &[u8])> = RELEVANT
        .iter()
        .flat_map(|name| call.headers.get_all(*name).iter().map(move |value| (*name, value.as_bytes())))
        .collect();
    Some((repeated.key("default", call.target.as_str(), &headers), repeated.form()))
}

/// The other's reply under this request's name.
fn joined(
    gateway: &Gateway,
    call: &Call,
    dialect: Dialect,
    mut settle: Settle,
    (status, mut head, body): (StatusCode, HeaderMap, Box<SharedBody>),
) -> Response<ReplyBody> {
    if let Ok(view) = dialect::view(dialect, call.body.bytes()) {
        settle.about(About {
            model: Arc::from(&*view.model),
            served_model: None,
            lora: None,
            stream: view.stream,
            priority: call.overrides.priority,
            cluster: None,
            prompt: PromptNote { source: PromptSource::None, tokens: 0, new_tokens: 0 },
        });
    }
    settle.joined(gateway.router.policy(None), status.as_u16());
    reply::insert(&mut head, HeaderName::from_static(REQUEST_ID), settle.request_id());
    if head.contains_key("x-warmroute-decision") {
        reply::insert(&mut head, HeaderName::from_static("x-warmroute-decision"), &settle.id().to_string());
    }
    if head.contains_key("x-vllm-router-cache-status") {
        head.insert("x-vllm-router-cache-status", HeaderValue::from_static("HIT"));
        head.insert("x-vllm-router-method", HeaderValue::from_static("cache-hit"));
    }
    head.insert("x-cache", HeaderValue::from_static("HIT"));
    head.insert("x-warmroute-cache-reason", HeaderValue::from_static("joined"));
    reply::with_head((status, head), ReplyBody::Shared(Box::new(body.settling(settle))))
}
