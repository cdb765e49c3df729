//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;

use crate::server_state::ServerState;

use super::{
    SimApiError, SimBody, body,
    chat_api::ChatApi,
    generate, prompts,
    request::{self, GenerationBody, Prompts},
};

/// Returns the ids of a text or of a chat.
pub(crate) async fn tokenize(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Response<SimBody> {
    match tokens(state, request).await {
        Ok(reply) => reply,
        Err(error) => error.into_response(),
    }
}

async fn tokens(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, SimApiError> {
    let body: GenerationBody = request::parse(&request::read(request).await?)?;
    generate::known_model(&state, body.model.as_deref())?;
    let with_strings = body.return_token_strs.unwrap_or(false);
    let dialect = match (&body.messages, &body.prompt) {
        (Some(_), _) => ChatApi::Chat,
        // An empty text has no tokens; that is valid here.
        (None, Some(Prompts::Text(_))) => ChatApi::Completions,
        (None, _) => {
            return Err(SimApiError::bad_request(
                "prompt: Input should be a valid string",
                "prompt",
            ));
        }
    };
    let ids = prompts::ids(Arc::clone(&state), dialect, body)
        .await?
        .concat();
    let token_strs: Option<Vec<_>> = with_strings.then(|| {
        ids.iter()
            .map(|id| state.tokenizer.model.decode(&[*id]).unwrap_or_default())
            .collect()
    });
    Ok(body::json(
        StatusCode::OK,
        &json!({
            "count": ids.len(), "max_model_len": state.config.max_model_len, "tokens": ids, "token_strs": token_strs,
        }),
    ))
}

#[derive(Deserialize)]
struct DetokenizeBody {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// Returns the text of ids.
pub(crate) async fn detokenize(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Response<SimBody> {
    match text(&state, request).await {
        Ok(reply) => reply,
        Err(error) => error.into_response(),
    }
}

async fn text(
    state: &ServerState,
    request: Request<Incoming>,
) -> Result<Response<SimBody>, SimApiError> {
    let body: DetokenizeBody = request::parse(&request::read(request).await?)?;
    generate::known_model(state, body.model.as_deref())?;
    let text = state.tokenizer.model.decode(&body.tokens);
    let text = text.map_err(|error| SimApiError::bad_request(error.to_string(), "tokens"))?;
    Ok(body::json(StatusCode::OK, &json!({"prompt": text})))
}
