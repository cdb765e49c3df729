//! The routing table of the HTTP server.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use crate::server_state::ServerState;

use super::{
    ConnectionCut, SimBody, body,
    chat_api::ChatApi,
    generate, info, messages, metrics, peer,
    pooling::{self, Pooling},
    realtime::{self, AfterHttp},
    render, responses, sim, tokenize,
};

/// Answers one request; an error ends the connection without an answer. `after` gets what follows a
/// handshake.
pub(crate) async fn answer(
    state: Arc<ServerState>,
    request: Request<Incoming>,
    after: &AfterHttp,
) -> Result<Response<SimBody>, ConnectionCut> {
    let path = request.uri().path().to_owned();
    if path.starts_with("/v1/") && !is_authorised(&state, &request) {
        return Ok(body::json(
            StatusCode::UNAUTHORIZED,
            &json!({"error": "Unauthorized"}),
        ));
    }
    if is_hidden(&state, &path) {
        return Ok(not_found());
    }
    if let Some(below) = path.strip_prefix("/v1/responses/") {
        let stored = responses::stored(&state, request.method(), below);
        return Ok(stored.unwrap_or_else(not_found));
    }
    let get = request.method() == Method::GET || request.method() == Method::HEAD;
    let post = request.method() == Method::POST;
    Ok(match path.as_str() {
        "/v1/chat/completions" if post => {
            return generate::answer(state, ChatApi::Chat, request).await;
        }
        "/v1/chat/completions/batch" if post => {
            return generate::answer(state, ChatApi::ChatBatch, request).await;
        }
        "/v1/chat/completions/render" if post => render::render(state, request).await,
        "/inference/v1/generate" if post => {
            return generate::answer(state, ChatApi::TokenIds, request).await;
        }
        "/generate" if post => {
            return generate::answer(state, ChatApi::SglangGenerate, request).await;
        }
        "/v1/completions" if post => {
            return generate::answer(state, ChatApi::Completions, request).await;
        }
        "/v1/responses" if post => {
            return generate::answer(state, ChatApi::Responses, request).await;
        }
        "/v1/messages" if post => return generate::answer(state, ChatApi::Messages, request).await,
        "/v1/messages/count_tokens" if post => messages::count_tokens(state, request).await,
        "/v1/embeddings" if post => {
            return pooling::answer(state, Pooling::Embeddings, request).await;
        }
        "/v1/score" | "/score" if post => {
            return pooling::answer(state, Pooling::Score, request).await;
        }
        "/v1/rerank" | "/v2/rerank" | "/rerank" if post => {
            return pooling::answer(state, Pooling::Rerank, request).await;
        }
        "/v1/audio/speech" if post => {
            return pooling::answer(state, Pooling::Speech, request).await;
        }
        "/v1/audio/transcriptions" if post => {
            return pooling::answer(state, Pooling::Transcription, request).await;
        }
        "/v1/realtime" if request.method() == Method::GET => {
            return realtime::answer(state, request, after).await;
        }
        "/tokenize" if post => tokenize::tokenize(state, request).await,
        "/detokenize" if post => tokenize::detokenize(state, request).await,
        "/reset_prefix_cache" if post => info::reset_prefix_cache(&state),
        "/sim/held" if post => peer::held(&state, request).await,
        "/sim/fault" if post => sim::fault(&state, request).await,
        "/sim/events" if post => sim::events(&state, request).await,
        "/sim/stats" if get => sim::stats(&state),
        "/v1/models" if get => info::models(&state),
        "/health" | "/ping" if get => info::health(&state),
        "/version" if get => body::json(StatusCode::OK, &json!({"version": "0.32.0"})),
        "/metrics" if get => metrics::metrics(&state),
        "/kv_event_sources" if get => info::kv_event_sources(&state),
        "/sim/tokenizer.json" if get => info::file(state.tokenizer.tokenizer_json.clone()),
        "/sim/tokenizer_config.json" if get => info::file(state.tokenizer.tokenizer_config.clone()),
        path if KNOWN.contains(&path) => body::json(
            StatusCode::METHOD_NOT_ALLOWED,
            &json!({"detail": "Method Not Allowed"}),
        ),
        _ => not_found(),
    })
}

/// All paths above, to distinguish a wrong method from a wrong path.
const KNOWN: [&str; 33] = [
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/inference/v1/generate",
    "/generate",
    "/v1/audio/transcriptions",
    "/v1/audio/speech",
    "/v1/realtime",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/reset_prefix_cache",
    "/health",
    "/ping",
    "/version",
    "/metrics",
    "/kv_event_sources",
    "/sim/held",
    "/sim/fault",
    "/sim/events",
    "/sim/stats",
    "/sim/tokenizer.json",
    "/sim/tokenizer_config.json",
];

/// Returns whether this engine is configured to answer as if it did not know the path.
fn is_hidden(state: &ServerState, path: &str) -> bool {
    let foreign = path.starts_with("/v1/messages") && !state.config.api.anthropic;
    foreign
        || state
            .config
            .api
            .without
            .iter()
            .any(|without| without == path)
}

fn not_found() -> Response<SimBody> {
    body::json(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"}))
}

/// Checks the API key. As in vLLM it guards the paths under `/v1`.
fn is_authorised(state: &ServerState, request: &Request<Incoming>) -> bool {
    let Some(key) = &state.config.api.api_key else {
        return true;
    };
    request
        .headers()
        .get(http::header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .is_some_and(|(scheme, given)| scheme.eq_ignore_ascii_case("bearer") && given == key)
}
