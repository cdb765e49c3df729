//! Cached and coalesced replies, before the stages of a generation.
//!
//! First comes the lookup of a stored reply, then of a flight that runs or has just ended; only
//! then does the request go to a worker. `dialect` defines the form of a cached reply,
//! `response-cache` the rest: eligibility, storage, flights.
//!
//! **Invariant**: nothing here makes a request fail, and a reply is cached only if the client got
//! all of it without error.

mod hit;
mod lookup;
mod parts;
mod similar;
#[cfg(test)]
mod tests;

use std::{panic::AssertUnwindSafe, sync::Arc};

use config::CompatSection;
use dialect::Dialect;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use response_cache::{
    CacheReason, CacheRequest, CacheResult, Eligibility, FinishedReplyUse, FlightRole, ReplyFill,
    ResponseCache, RoutingOverrides,
};

use self::lookup::CacheOutcome;
pub(crate) use self::parts::ReplyCache;
use super::{
    accept::AcceptedRequest, overrides::HeaderOverrides, record::RequestGuard, reply,
    reply_body::ReplyBody,
};
use crate::{
    memory::MemoryStage,
    routes::{ErrorShape, RouteHandler},
};

impl ReplyCache {
    /// Adds the cache headers to the refusal of a request that did not get here.
    pub(super) fn mark_refused(
        &self,
        endpoint: RouteHandler,
        mut response: Response<ReplyBody>,
    ) -> Response<ReplyBody> {
        if matches!(endpoint, RouteHandler::Generate(dialect) if response_cache::is_cached(dialect))
        {
            add_cache_headers(CacheReason::Refused, response.headers_mut(), &self.compat);
        }
        response
    }

    /// Answers a generation from the cache, or sends it with `send` once for all equal requests.
    pub(super) async fn answer<S, F>(
        &self,
        call: AcceptedRequest,
        dialect: Dialect,
        mut guard: Box<RequestGuard>,
        send: S,
    ) -> Response<ReplyBody>
    where
        S: FnOnce(AcceptedRequest, Box<RequestGuard>) -> F + Send + 'static,
        F: Future<Output = Response<ReplyBody>> + Send + 'static,
    {
        let began = self.clock.now();
        let eligibility = self.eligibility(&call, dialect).await;
        // Also a stream that another request's worker, or none, answers is one of its tenant.
        if eligibility.asks_stream()
            && let Err(error) = guard.begin_stream()
        {
            let response = reply::refused(guard, &error);
            return self.mark_refused(RouteHandler::Generate(dialect), response);
        }
        let outcome = match eligibility.cacheable {
            None => CacheOutcome::Miss(None, None),
            Some(Err(reason)) => CacheOutcome::Miss(Some(reason), None),
            Some(Ok(())) => Box::pin(self.look_up(&eligibility, call.tenant_name())).await,
        };
        guard.timing().cache = self.clock.now().ms_since(began) * 1e3;
        let (reason, fill) = match outcome {
            CacheOutcome::Hit(found) => {
                self.store.record_result(CacheResult::Hit);
                hit::set_facts(&call, &eligibility, &mut guard);
                return hit::into_reply(self, guard, found);
            }
            CacheOutcome::Miss(reason, fill) => (reason, fill),
        };
        let afterwards = match fill {
            Some(_) => FinishedReplyUse::CachedElsewhere,
            None => FinishedReplyUse::Answers,
        };
        let key = eligibility.coalescing_key(self.store.generation(), afterwards);
        let own = UpstreamGeneration {
            store: Arc::clone(&self.store),
            compat: Arc::clone(&self.compat),
            reason,
            stores_reply: fill.is_some() && self.memory.stage() < MemoryStage::SmallBodies,
            fill,
            send,
        };
        match key.map(|key| self.coalescer.join_flight(key, afterwards)) {
            None => own.run(call, guard).await,
            Some(FlightRole::First(leader)) => {
                guard.share_outcome(leader.outcome_slot());
                let reply = Box::pin(self.lead(own, call, guard));
                leader.lead(reply, ReplyBody::live).await
            }
            Some(FlightRole::Joins(follower)) => match Box::pin(follower.join()).await {
                Some(reply) => {
                    if own.reason.is_some() {
                        self.store.record_result(CacheResult::Hit);
                    }
                    hit::set_facts(&call, &eligibility, &mut guard);
                    hit::into_follower_reply(self, guard, reply)
                }
                None => own.run(call, guard).await,
            },
        }
    }

    async fn eligibility<'a>(
        &self,
        call: &'a AcceptedRequest,
        dialect: Dialect,
    ) -> Eligibility<'a> {
        let request = CacheRequest {
            dialect,
            target: call.target.as_str(),
            headers: &call.headers,
            body: call.body.bytes(),
            overrides: match &call.overrides {
                own if own.worker.is_some() => RoutingOverrides::Worker,
                own if *own != HeaderOverrides::default() => RoutingOverrides::Choice,
                _ => RoutingOverrides::Nothing,
            },
        };
        Eligibility::of(request, &self.settings, &self.store.settings()).await
    }

    /// Sends the request for all that joined it. A panic costs only the leader: the followers, one
    /// of which may have been driving it, send their own requests.
    fn lead<S, F>(
        &self,
        own: UpstreamGeneration<S>,
        mut call: AcceptedRequest,
        guard: Box<RequestGuard>,
    ) -> impl Future<Output = Response<ReplyBody>> + Send + 'static + use<S, F>
    where
        S: FnOnce(AcceptedRequest, Box<RequestGuard>) -> F + Send + 'static,
        F: Future<Output = Response<ReplyBody>> + Send + 'static,
    {
        let (metrics, request_id) = (Arc::clone(&self.metrics), Arc::clone(&call.request_id));
        let shape = ErrorShape::of(call.target.path());
        // Followers may not accept the leader's encoding.
        call.headers.remove(header::ACCEPT_ENCODING);
        async move {
            let reply = AssertUnwindSafe(own.run(call, guard)).catch_unwind().await;
            reply.unwrap_or_else(|_| reply::panicked(&metrics, shape, &request_id))
        }
    }
}

/// A generation that a worker answers, by `send`.
struct UpstreamGeneration<S> {
    store: Arc<ResponseCache>,
    compat: Arc<CompatSection>,
    /// Why no cached reply answers; `None`: this route is never cached.
    reason: Option<CacheReason>,
    fill: Option<ReplyFill>,
    /// Whether `fill` stores the reply: not under memory pressure.
    stores_reply: bool,
    send: S,
}

impl<S, F> UpstreamGeneration<S>
where
    S: FnOnce(AcceptedRequest, Box<RequestGuard>) -> F + Send + 'static,
    F: Future<Output = Response<ReplyBody>> + Send + 'static,
{
    async fn run(
        self,
        mut call: AcceptedRequest,
        mut guard: Box<RequestGuard>,
    ) -> Response<ReplyBody> {
        if let Some(reason) = self.reason {
            self.store.record_result(reason.result());
        }
        let fill = self.fill.map(|fill| {
            // The router reads a reply that it caches.
            call.headers.remove(header::ACCEPT_ENCODING);
            (fill, guard.shared_outcome())
        });
        let mut response = (self.send)(call, guard).await;
        if let Some(reason) = self.reason {
            add_cache_headers(reason, response.headers_mut(), &self.compat);
        }
        match fill.filter(|_| self.stores_reply) {
            Some((fill, good)) => fill.watch(response, good, ReplyBody::live),
            None => response,
        }
    }
}

/// Adds `X-Cache`, and the reason where routing headers are enabled.
fn add_cache_headers(reason: CacheReason, fields: &mut HeaderMap, shown: &CompatSection) {
    let status = HeaderValue::from_static(match reason.result() {
        CacheResult::Hit => "HIT",
        CacheResult::Miss => "MISS",
        CacheResult::Skip => "BYPASS",
    });
    fields.insert(HeaderName::from_static("x-cache"), status.clone());
    if shown.expose_routing_headers {
        let reason = HeaderValue::from_static(reason.as_str());
        fields.insert(HeaderName::from_static("x-warmroute-cache-reason"), reason);
        if shown.vllm_router_headers() {
            fields.insert(
                HeaderName::from_static("x-vllm-router-cache-status"),
                status,
            );
        }
    }
}
