//! The HTTP server, in the shapes of vLLM 0.32.
//!
//! It has its own loop over `hyper`, because a simulated engine must do what server libraries
//! prevent: end a connection without an answer, or in the middle of one.

mod body;
mod chat_api;
mod chat_batch;
mod disaggregated;
mod embeddings;
mod error;
mod generate;
mod info;
mod lines;
mod logprobs;
mod media;
mod messages;
mod metrics;
mod peer;
mod pooling;
mod prompts;
mod realtime;
mod render;
mod reply;
mod reply_options;
mod request;
mod responses;
mod routes;
mod scoring;
mod sglang;
mod shape;
mod sim;
mod speech;
mod stream;
mod token_ids;
mod tokenize;
mod transcription;
mod transfer;

use std::{sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use net::Listener;
use tokio::task::JoinSet;

pub(crate) use body::{ConnectionCut, SimBody};
pub(crate) use error::SimApiError;
use realtime::AfterHttp;
pub(crate) use responses::ResponseStore;

use crate::server_state::ServerState;

/// Accepts connections forever. Dropping the future cuts all of them.
pub(crate) async fn serve(listener: Listener, state: Arc<ServerState>) {
    // No limit beyond the system's: a real engine does not reject clients either.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok(stream) => {
                let state = Arc::clone(&state);
                connections.spawn(async move {
                    let after = AfterHttp::default();
                    let service =
                        service_fn(|request| routes::answer(Arc::clone(&state), request, &after));
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades();
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "connection ended early");
                    }
                    let conversation = after.lock().take();
                    if let Some(conversation) = conversation {
                        conversation.await;
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
