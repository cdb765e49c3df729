//! `GET /v1/kv_events`: the content of the workers' caches and its changes, as server-sent events.
//!
//! A subscriber's events are made when its connection has room for them: [`follower`] takes changes
//! from the index's feed, [`snapshot`] the initial state before them, [`writer`] turns both into
//! text. Nothing waits for a subscriber. One that reads too slowly gets `event: lagged` and the
//! end; one that takes nothing at all is cut by the listener.
//!
//! Not here: which of an engine's announcements count. The feed reports the index's content,
//! whatever its origin.
//!
//! **Invariant**: the events sent to a subscriber, applied in order, give the index's content at a
//! recent moment.

mod changed_blocks;
mod changes;
mod follower;
mod names;
mod numbering;
mod query;
mod snapshot;
#[cfg(test)]
mod tests;
mod writer;

use std::{convert::Infallible, sync::Arc};

use api::openapi::Role;
use axum::{
    Extension,
    body::{Body, Bytes},
    extract::{Query, State, rejection::QueryRejection},
    http::{Uri, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use dialect::{ApiError, ErrorCode};
use futures_util::{Stream, stream};
use tokio::sync::Semaphore;

use crate::{AdminParts, access::Operator, response};
use follower::{Follower, SubscriberPermit};
use names::SubscriberNames;
use query::{RawStreamQuery, StreamQuery};

/// Limit of concurrent subscribers; one more is refused.
const SUBSCRIBERS: usize = 64;
/// Limit of subscribers that are sent the initial state at once; others wait. Each of them records
/// the blocks that change meanwhile.
const SNAPSHOTS: usize = 8;

/// Permits for subscribers.
#[derive(Debug)]
struct SubscriberLimits {
    subscribers: Arc<Semaphore>,
    snapshots: Arc<Semaphore>,
}

/// Returns the route.
pub(crate) fn route() -> MethodRouter<AdminParts> {
    let limits = SubscriberLimits {
        subscribers: Arc::new(Semaphore::new(SUBSCRIBERS)),
        snapshots: Arc::new(Semaphore::new(SNAPSHOTS)),
    };
    get(subscribe).layer(Extension(Arc::new(limits)))
}

async fn subscribe(
    State(parts): State<AdminParts>,
    Extension(limits): Extension<Arc<SubscriberLimits>>,
    Extension(operator): Extension<Operator>,
    query: Result<Query<RawStreamQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        let message = "the query cannot be read: expected each of worker, format, snapshot and salts at most once";
        return response::error(&ApiError::new(ErrorCode::InvalidRequest, message));
    };
    match follower(&parts, &limits, &operator, query) {
        Ok(follower) => {
            let fields = [
                (header::CONTENT_TYPE, "text/event-stream"),
                (header::CACHE_CONTROL, "no-store"),
                // A proxy that collects replies would hold events back.
                (header::HeaderName::from_static("x-accel-buffering"), "no"),
            ];
            (fields, Body::from_stream(events(follower))).into_response()
        }
        Err(error) => response::error(&error),
    }
}

/// Returns the body of a subscriber. Each event is made on demand; a cancelled poll loses none.
fn events(follower: Follower) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(follower, |mut follower| async move {
        let bytes = follower.next().await?;
        Some((Ok(bytes), follower))
    })
}

/// Returns the role that a query needs: salts separate tenants.
pub(crate) fn needed(uri: &Uri) -> Role {
    match Query::<RawStreamQuery>::try_from_uri(uri) {
        Ok(Query(query)) if query.shows_salts() => Role::Admin,
        _ => Role::Read,
    }
}

/// Checks that an operator who may see what separates tenants has sent a token.
fn may_see_salts(operator: &Operator) -> Result<(), ApiError> {
    if operator.has_token {
        return Ok(());
    }
    let message = "salts=plain shows what separates tenants, and this listener asks for no token: set admin.token_file, or \
                   leave salts out to get their digests";
    Err(ApiError::new(ErrorCode::FieldNotAllowed, message).param("salts"))
}

fn follower(
    parts: &AdminParts,
    limits: &SubscriberLimits,
    operator: &Operator,
    raw: RawStreamQuery,
) -> Result<Follower, ApiError> {
    let query = StreamQuery::try_from(raw)?;
    if query.salts.are_plain() {
        may_see_salts(operator)?;
    }
    let fleet = Arc::clone(&parts.fleet);
    let list_workers = move || {
        let workers = &fleet.snapshot().workers;
        workers
            .iter()
            .map(|worker| (worker.id, Arc::clone(&worker.name)))
            .collect()
    };
    let names = SubscriberNames::new(Box::new(list_workers), query.worker.clone());
    if let Some(worker) = &query.worker
        && !names.has(worker)
    {
        let worker: String = worker
            .chars()
            .filter(|c| !c.is_control())
            .take(100)
            .collect();
        let message = format!("no worker is named {worker:?}: GET /admin/workers lists them");
        return Err(ApiError::new(ErrorCode::UnknownWorker, message).param("worker"));
    }
    let Ok(permit) = Arc::clone(&limits.subscribers).try_acquire_owned() else {
        let message = format!(
            "{SUBSCRIBERS} subscribers follow already, the most there can be: close one, or ask again later"
        );
        return Err(ApiError::new(ErrorCode::Overloaded, message));
    };
    Follower::new(
        &parts.kv_index.index,
        parts.clock,
        names,
        &query,
        SubscriberPermit::new(permit, Arc::clone(&limits.snapshots)),
    )
}
