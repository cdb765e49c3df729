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
mod similar;
mod status;

use std::{panic::AssertUnwindSafe, sync::Arc};

use dialect::Dialect;
use futures_util::FutureExt;
use http::{Response, header};
use response_cache::CacheResult as Counted;

use self::{
    cacheability::CacheRequest,
    fill::ReplyFill,
    lookup::CacheOutcome,
    status::{CacheReason, CacheStatus},
};
pub(crate) use self::{fill::FillingBody, similar::SimilarQuery};
use super::{accept::AcceptedRequest, record::RequestGuard, reply::ReplyBody};
use crate::{
    Gateway,
    coalesce::{FinishedReplyUse, FlightRole, FollowerReply},
    routes::ErrorShape,
};

/// Answers a generation from the cache, or sends it once for all equal requests.
pub(super) async fn generate(
    gateway: &Arc<Gateway>,
    call: AcceptedRequest,
    dialect: Dialect,
    mut settle: RequestGuard,
) -> Response<ReplyBody> {
    let began = gateway.clock.now();
    let asked = CacheRequest::of(gateway, &call, dialect).await;
    let looked = lookup::lookup(gateway, &call, &asked).await;
    settle.timing().cache = gateway.clock.now().ms_since(began) * 1e3;
    let (status, fill) = match looked {
        CacheOutcome::Hit(found) => {
            gateway.cache.record_result(Counted::Hit);
            return hit::into_reply(gateway, &call, &asked, settle, found);
        }
        CacheOutcome::Miss(status, fill) => (status, fill),
    };
    let afterwards = if fill.is_some() {
        FinishedReplyUse::CachedElsewhere
    } else {
        FinishedReplyUse::Answers
    };
    let place = asked
        .coalescing_key(gateway, fill.is_some())
        .map(|key| gateway.coalescer.join_flight(key, afterwards));
    let own = UpstreamGeneration {
        gateway: Arc::clone(gateway),
        dialect,
        status,
        fill,
    };
    match place {
        None => own.generate(call, settle).await,
        Some(FlightRole::First(seat)) => {
            settle.share_outcome(seat.outcome_slot());
            let (gateway, request_id) = (Arc::clone(gateway), Arc::clone(&call.request_id));
            let shape = ErrorShape::of(call.target.path());
            // A panic costs only the leader: the followers, one of which may have been driving it,
            // send their own requests.
            let reply = async move {
                // Followers may not accept the leader's encoding.
                let mut call = call;
                call.headers.remove(header::ACCEPT_ENCODING);
                let reply = AssertUnwindSafe(own.generate(call, settle))
                    .catch_unwind()
                    .await;
                reply.unwrap_or_else(|_| super::panicked(&gateway, shape, &request_id))
            };
            seat.lead(Box::pin(reply)).await
        }
        Some(FlightRole::Joins(seat)) => match seat.join().await {
            FollowerReply::Reply(status, head, body) => {
                if own.status.is_some() {
                    gateway.cache.record_result(Counted::Hit);
                }
                hit::into_follower_reply(gateway, &call, &asked, settle, (status, head, body))
            }
            FollowerReply::Nothing => own.generate(call, settle).await,
        },
    }
}

/// A generation that a worker answers.
struct UpstreamGeneration {
    gateway: Arc<Gateway>,
    dialect: Dialect,
    status: Option<CacheStatus>,
    fill: Option<ReplyFill>,
}

impl UpstreamGeneration {
    async fn generate(
        self,
        mut call: AcceptedRequest,
        mut settle: RequestGuard,
    ) -> Response<ReplyBody> {
        let Self {
            gateway,
            dialect,
            status,
            fill,
        } = self;
        if let Some(status) = status {
            gateway.cache.record_result(status.result());
        }
        let Some(fill) = fill else {
            let response = super::generate(&gateway, call, dialect, settle).await;
            return status::with_status(status, gateway.rules.headers, response);
        };
        // The router reads a reply that it caches.
        call.headers.remove(header::ACCEPT_ENCODING);
        let good = settle.shared_outcome();
        let response = super::generate(&gateway, call, dialect, settle).await;
        fill.watch(
            status::with_status(status, gateway.rules.headers, response),
            good,
        )
    }
}
