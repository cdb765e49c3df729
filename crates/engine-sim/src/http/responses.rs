//! `/v1/responses`: chats in another form, and conversations that the engine stores.

mod input;
mod items;
mod object;
mod reply;
mod store;
mod stored;

use serde_json::Value;

use crate::server_state::ServerState;

use super::{
    SimApiError,
    request::{self, GenerationBody},
};

pub(crate) use object::ResponseHead;
pub(crate) use reply::ResponseReply;
pub(crate) use store::ResponseStore;
pub(crate) use stored::stored;

/// The parts of a request that its reply needs.
#[derive(Debug)]
pub(crate) struct ResponseContext {
    /// The request, which the reply repeats in part.
    request: Value,
    /// The conversation so far as chat messages, without instructions.
    messages: Vec<Value>,
    store: bool,
}

/// Reads a request and converts it into a chat's.
pub(crate) fn read(
    state: &ServerState,
    body: &[u8],
) -> Result<(GenerationBody, ResponseContext), SimApiError> {
    let request: Value = request::parse(body)?;
    for field in ["background", "conversation", "prompt"] {
        if !matches!(
            request.get(field),
            None | Some(Value::Null | Value::Bool(false))
        ) {
            return Err(SimApiError::bad_request(
                format!(
                    "{field} is given, which this simulated engine does not know: leave it out."
                ),
                None,
            ));
        }
    }
    let mut messages = match request.get("previous_response_id") {
        None | Some(Value::Null) => Vec::new(),
        Some(id) => {
            let known = id.as_str().and_then(|id| state.responses.get(id));
            known
                .ok_or_else(|| SimApiError::unknown_response(&id.to_string()))?
                .messages
                .clone()
        }
    };
    messages.extend(input::messages(&request["input"])?);
    let chat = input::chat(&request, &messages)?;
    let store = request
        .get("store")
        .and_then(Value::as_bool)
        .unwrap_or(true);
    Ok((
        chat,
        ResponseContext {
            request,
            messages,
            store,
        },
    ))
}
