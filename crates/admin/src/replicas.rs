//! `GET /admin/replicas`, and what the replicas read from each other: the feed of messages, the
//! open requests and a copy of the index.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    extract::{Query, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use dialect::{ApiError, ErrorCode};
use futures_util::stream;
use replicas::{REPLICA_HEADER, Replicas};
use serde::Deserialize;

use crate::response;

const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

pub(crate) async fn list(State(replicas): State<Arc<Replicas>>) -> Response {
    response::json(&replicas.report())
}

pub(crate) async fn feed(State(replicas): State<Arc<Replicas>>) -> Response {
    let Some(feed) = replicas.feed() else {
        return not_shared();
    };
    let id = HeaderValue::from_str(&replicas.id()).unwrap_or(HeaderValue::from_static("0"));
    let messages = stream::unfold(feed, |mut feed| async move {
        let message = feed.next().await?;
        Some((Ok::<_, Infallible>(message), feed))
    });
    let headers = [
        (header::CONTENT_TYPE, BINARY),
        (header::HeaderName::from_static(REPLICA_HEADER), id),
    ];
    (headers, Body::from_stream(messages)).into_response()
}

/// Query of [`state`].
#[derive(Debug, Deserialize)]
pub(crate) struct PageQuery {
    #[serde(default)]
    after: u64,
}

pub(crate) async fn state(
    State(replicas): State<Arc<Replicas>>,
    Query(query): Query<PageQuery>,
) -> Response {
    match replicas.state_page(query.after).await {
        Some(page) => ([(header::CONTENT_TYPE, BINARY)], page).into_response(),
        None => not_shared(),
    }
}

/// Sends the head at once, so that a starting peer knows who answers at all; the copy takes time.
/// Without one the body is empty.
pub(crate) async fn snapshot(State(replicas): State<Arc<Replicas>>) -> Response {
    if replicas.feed().is_none() {
        return not_shared();
    }
    let copy = stream::once(async move {
        Ok::<_, Infallible>(replicas.index_copy().await.unwrap_or_default())
    });
    let headers = [(header::CONTENT_TYPE, BINARY)];
    (headers, Body::from_stream(copy)).into_response()
}

fn not_shared() -> Response {
    response::error(&ApiError::new(
        ErrorCode::UnknownRoute,
        "this router shares nothing with others here: set replicas.mode to peers",
    ))
}
