//! Requests without generated text: vectors, scores, speech and
//! transcriptions.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

use crate::{
    fault::InjectedFault,
    server_state::{RequestCounts, ServerState},
};

use super::{
    ConnectionCut, SimApiError, SimBody, embeddings, request, scoring, speech, transcription,
};

/// A kind of pooling request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    Embeddings,
    Score,
    Rerank,
    Speech,
    Transcription,
}

/// Answers one request, subject to injected faults. Faults inside a body do not apply.
pub(crate) async fn answer(
    state: Arc<ServerState>,
    pooling: Pooling,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, ConnectionCut> {
    RequestCounts::add(&state.counts.requests);
    let headers = request.headers().clone();
    let body = request::read(request).await;
    match state.fault.take() {
        Some(InjectedFault::Status(status)) => {
            return Ok(SimApiError::of_status(status).into_response());
        }
        Some(InjectedFault::Hang) => std::future::pending().await,
        Some(InjectedFault::Reset) => return Err(ConnectionCut),
        _ => {}
    }
    let reply = match (body, pooling) {
        (Err(error), _) => Err(error),
        (Ok(body), Pooling::Embeddings) => embeddings::embed(state, headers, &body).await,
        (Ok(body), Pooling::Score) => scoring::score(state, headers, &body).await,
        (Ok(body), Pooling::Rerank) => scoring::rerank(state, headers, &body).await,
        (Ok(body), Pooling::Speech) => speech::speak(&state, &body),
        (Ok(body), Pooling::Transcription) => transcription::transcribe(&state, &headers, &body),
    };
    Ok(reply.unwrap_or_else(SimApiError::into_response))
}
