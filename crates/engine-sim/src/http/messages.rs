//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, for engines started with it.

mod input;
mod reply;

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use crate::server_state::ServerState;

use super::{SimBody, body, chat_api::ChatApi, generate, prompts, request};

pub(crate) use input::{LengthRequirement, read};
pub(crate) use reply::MessageReply;

/// Returns the number of tokens of a prompt.
pub(crate) async fn count_tokens(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Response<SimBody> {
    let counted = async {
        let body = read(&request::read(request).await?, LengthRequirement::Unneeded)?;
        generate::known_model(&state, body.model.as_deref())?;
        let prompts = prompts::ids(Arc::clone(&state), ChatApi::Messages, body).await?;
        Ok::<_, super::SimApiError>(
            json!({"input_tokens": prompts.iter().map(|prompt| prompt.len()).sum::<usize>()}),
        )
    };
    match counted.await {
        Ok(count) => body::json(StatusCode::OK, &count),
        Err(error) => error.into_response_in(ChatApi::Messages),
    }
}
