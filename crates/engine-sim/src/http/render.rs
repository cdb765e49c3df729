//! `/v1/chat/completions/render`: the request of token ids that a chat becomes.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::server_state::ServerState;

use super::{
    SimApiError, SimBody, body,
    chat_api::ChatApi,
    generate,
    media::SimPrompt,
    prompts,
    request::{self, GenerationBody},
};

/// Bytes of tensors for each token of an item, in base64.
const TENSOR_BYTES: usize = 1 << 10;

/// Returns the token ids of a chat, and the hashes and places of its items.
pub(crate) async fn render(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Response<SimBody> {
    let headers = request.headers().clone();
    match rendered(&state, &headers, request).await {
        Ok(reply) => body::json(StatusCode::OK, &reply),
        Err(error) => error.into_response(),
    }
}

async fn rendered(
    state: &Arc<ServerState>,
    headers: &HeaderMap,
    request: Request<Incoming>,
) -> Result<Value, SimApiError> {
    let body: GenerationBody = request::parse(&request::read(request).await?)?;
    let model = generate::known_model(state, body.model.as_deref())?;
    let with_tensors = body.return_mm_kwargs.unwrap_or(true);
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    let (salt, priority) = (body.cache_salt.clone(), body.priority.unwrap_or(0));
    let prompts = prompts::prompts(Arc::clone(state), ChatApi::Chat, body).await?;
    let [prompt] = &prompts[..] else {
        return Err(SimApiError::of_status(500));
    };
    let (length, longest) = (prompt.token_count(), state.config.max_model_len);
    if length >= longest {
        return Err(SimApiError::prompt_too_long(longest, length));
    }
    Ok(json!({
        "request_id": generate::reply_id(state, "chatcmpl", headers),
        "token_ids": prompt.ids,
        "token_offsets": null,
        "features": features(prompt, with_tensors),
        "sampling_params": {"max_tokens": max_tokens.unwrap_or(longest - length)},
        "model": model,
        "stream": false,
        "stream_options": null,
        "cache_salt": salt,
        "priority": priority,
        "kv_transfer_params": null,
    }))
}

/// Returns the items by modality; `null` without any.
fn features(prompt: &SimPrompt, with_tensors: bool) -> Value {
    let mut hashes = BTreeMap::<&str, Vec<Value>>::new();
    let mut places = BTreeMap::<&str, Vec<Value>>::new();
    let mut tensors = BTreeMap::<&str, Vec<Value>>::new();
    for (&modality, item) in prompt.modalities.iter().zip(prompt.media.items()) {
        let of = |lists: &mut BTreeMap<&'static str, Vec<Value>>, value: Value| {
            lists.entry(modality).or_default().push(value);
        };
        of(&mut hashes, json!(item.identifier));
        of(
            &mut places,
            json!({"offset": item.offset, "length": item.length}),
        );
        of(
            &mut tensors,
            json!("A".repeat(TENSOR_BYTES * item.length as usize)),
        );
    }
    if hashes.is_empty() {
        return Value::Null;
    }
    json!({
        "mm_hashes": hashes,
        "mm_placeholders": places,
        "kwargs_data": with_tensors.then_some(tensors),
    })
}
