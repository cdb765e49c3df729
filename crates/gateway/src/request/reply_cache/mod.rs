//! Cached and coalesced replies, before the stages of a generation.
//!
//! First comes the lookup in `response-cache`, then in the flights that run or have just ended
//! ([`crate::coalesce`]); only then does the request go to a worker. `dialect` defines the form of
//! a cached reply, `response-cache` its storage.
//!
//! **Invariant**: nothing here makes a request fail, and a reply is cached only if the client got
//! all of it without error.

mod cacheability;
mod fill;
mod hit;
mod lookup;
mod parts;
mod similar;
mod status;
#[cfg(test)]
mod tests;

use std::{panic::AssertUnwindSafe, sync::Arc};

use config::CompatSection;
use dialect::Dialect;
use futures_util::FutureExt;
use http::{Response, header};
use response_cache::{CacheResult as Counted, ResponseCache};

pub(crate) use self::parts::ReplyCache;
use self::{
    cacheability::CacheRequest, fill::ReplyFill, lookup::CacheOutcome, status::CacheStatus,
};
use super::{accept::AcceptedRequest, record::RequestGuard, reply, reply_body::ReplyBody};
use crate::{
    coalesce::{FinishedReplyUse, FlightRole, FollowerReply},
    routes::ErrorShape,
};

impl ReplyCache {
    /// Answers a generation from the cache, or sends it with `send` once for all equal requests.
    pub(super) async fn answer<S, F>(
        &self,
        call: AcceptedRequest,
        dialect: Dialect,
        mut settle: RequestGuard,
        send: S,
    ) -> Response<ReplyBody>
    where
        S: FnOnce(AcceptedRequest, RequestGuard) -> F + Send + 'static,
        F: Future<Output = Response<ReplyBody>> + Send + 'static,
    {
        let began = self.clock.now();
        let request = CacheRequest::of(self, &call, dialect).await;
        let looked = match request.cacheability {
            None => CacheOutcome::Miss(None, None),
            Some(Err(reason)) => CacheOutcome::Miss(Some(CacheStatus::bypass(reason)), None),
            Some(Ok(())) => self.look_up(&call, &request).await,
        };
        settle.timing().cache = self.clock.now().ms_since(began) * 1e3;
        let (status, fill) = match looked {
            CacheOutcome::Hit(found) => {
                self.store.record_result(Counted::Hit);
                hit::set_facts(&call, &request, &mut settle);
                return hit::into_reply(self, settle, found);
            }
            CacheOutcome::Miss(status, fill) => (status, fill),
        };
        let afterwards = if fill.is_some() {
            FinishedReplyUse::CachedElsewhere
        } else {
            FinishedReplyUse::Answers
        };
        let place = request
            .coalescing_key(self, fill.is_some())
            .map(|key| self.coalescer.join_flight(key, afterwards));
        let own = UpstreamGeneration {
            store: Arc::clone(&self.store),
            compat: Arc::clone(&self.compat),
            status,
            fill,
            send,
        };
        match place {
            None => own.run(call, settle).await,
            Some(FlightRole::First(seat)) => {
                settle.share_outcome(seat.outcome_slot());
                seat.lead(Box::pin(self.lead(own, call, settle))).await
            }
            Some(FlightRole::Joins(seat)) => match seat.join().await {
                FollowerReply::Reply(status, head, body) => {
                    if own.status.is_some() {
                        self.store.record_result(Counted::Hit);
                    }
                    hit::set_facts(&call, &request, &mut settle);
                    hit::into_follower_reply(self, settle, (status, head, body))
                }
                FollowerReply::Nothing => own.run(call, settle).await,
            },
        }
    }

    /// Sends the request for all that joined it. A panic costs only the leader: the followers, one
    /// of which may have been driving it, send their own requests.
    fn lead<S, F>(
        &self,
        own: UpstreamGeneration<S>,
        mut call: AcceptedRequest,
        settle: RequestGuard,
    ) -> impl Future<Output = Response<ReplyBody>> + Send + 'static + use<S, F>
    where
        S: FnOnce(AcceptedRequest, RequestGuard) -> F + Send + 'static,
        F: Future<Output = Response<ReplyBody>> + Send + 'static,
    {
        let (metrics, request_id) = (Arc::clone(&self.metrics), Arc::clone(&call.request_id));
        let shape = ErrorShape::of(call.target.path());
        // Followers may not accept the leader's encoding.
        call.headers.remove(header::ACCEPT_ENCODING);
        async move {
            let reply = AssertUnwindSafe(own.run(call, settle)).catch_unwind().await;
            reply.unwrap_or_else(|_| reply::panicked(&metrics, shape, &request_id))
        }
    }
}

/// A generation that a worker answers, by `send`.
struct UpstreamGeneration<S> {
    store: Arc<ResponseCache>,
    compat: Arc<CompatSection>,
    status: Option<CacheStatus>,
    fill: Option<ReplyFill>,
    send: S,
}

impl<S, F> UpstreamGeneration<S>
where
    S: FnOnce(AcceptedRequest, RequestGuard) -> F + Send + 'static,
    F: Future<Output = Response<ReplyBody>> + Send + 'static,
{
    async fn run(self, mut call: AcceptedRequest, mut settle: RequestGuard) -> Response<ReplyBody> {
        if let Some(status) = self.status {
            self.store.record_result(status.result());
        }
        let Some(fill) = self.fill else {
            let response = (self.send)(call, settle).await;
            return status::with_status(self.status, &self.compat, response);
        };
        // The router reads a reply that it caches.
        call.headers.remove(header::ACCEPT_ENCODING);
        let good = settle.shared_outcome();
        let response = (self.send)(call, settle).await;
        fill.watch(
            status::with_status(self.status, &self.compat, response),
            good,
        )
    }
}
