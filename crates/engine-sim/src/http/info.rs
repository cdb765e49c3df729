//! Information about the engine: models, health, event sources.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::server_state::ServerState;

use super::{SimBody, body};

/// Returns the base model and its adapters.
pub(crate) fn models(state: &ServerState) -> Response<SimBody> {
    let config = &state.config;
    let root = match &config.tokenizer.folder {
        Some(dir) => dir.display().to_string(),
        None => config.model.clone(),
    };
    let created = state.clock.unix_s();
    let model = |id: &str, root: &str, parent: Option<&str>, max_model_len: Option<u32>| {
        json!({
            "id": id, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": max_model_len,
            "permission": [{
                "id": format!("modelperm-{id}"), "object": "model_permission", "created": created,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
                "group": null, "is_blocking": false,
            }],
        })
    };
    let mut data = vec![model(
        &config.model,
        &root,
        None,
        Some(config.max_model_len),
    )];
    data.extend(
        config
            .loras
            .iter()
            .map(|name| model(name, name, Some(&config.model), None)),
    );
    body::json(StatusCode::OK, &json!({"object": "list", "data": data}))
}

/// Returns 200 with an empty body, or 503 during the start delay.
pub(crate) fn health(state: &ServerState) -> Response<SimBody> {
    let ready = state.clock.now() >= state.ready_at;
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    body::bytes(status, "application/json", Bytes::new())
}

/// Returns the event endpoints of each rank; `{}` without events.
pub(crate) fn kv_event_sources(state: &ServerState) -> Response<SimBody> {
    let mut sources = Map::new();
    if let Some(settings) = &state.config.events {
        for (number, rank) in state.ranks.iter().enumerate() {
            let Some(publisher) = &rank.publisher else {
                continue;
            };
            let source = json!({
                "enable_kv_cache_events": true,
                "publisher": "zmq",
                "endpoint": publisher.events.to_string(),
                "replay_endpoint": publisher.replay.as_ref().map(ToString::to_string),
                "buffer_steps": settings.buffer_steps,
                "hwm": 100_000,
                "max_queue_size": 100_000,
                "topic": settings.topic,
            });
            sources.insert(number.to_string(), source);
        }
    }
    body::json(StatusCode::OK, &Value::Object(sources))
}

/// Empties every rank's cache; unsuccessful if any rank has blocks in use.
pub(crate) fn reset_prefix_cache(state: &ServerState) -> Response<SimBody> {
    let mut success = true;
    for rank in &state.ranks {
        success &= rank.reset_cache();
    }
    body::json(StatusCode::OK, &json!({"success": success}))
}

/// Returns a tokenizer file unchanged.
pub(crate) fn file(content: Bytes) -> Response<SimBody> {
    body::bytes(StatusCode::OK, "application/json", content)
}
