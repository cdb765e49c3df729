//! `/v1/responses/{id}` and below: reading, cancelling and deleting a stored response.
//!
//! All responses are created in the foreground, so none can be cancelled any more.

use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::server_state::ServerState;

use super::{
    super::{SimApiError, SimBody, body},
    store::StoredResponse,
};

/// Answers a request below `/v1/responses/`; `None`: there is no such route.
pub(crate) fn stored(
    state: &ServerState,
    method: &Method,
    path: &str,
) -> Option<Response<SimBody>> {
    let (id, below) = match path.split_once('/') {
        Some((id, below)) => (id, Some(below)),
        None => (path, None),
    };
    let answer = match (method, below) {
        (&Method::GET, None) => found(state, id).map(|response| response.whole.clone()),
        (&Method::GET, Some("input_items")) => found(state, id).map(|response| items(&response)),
        (&Method::POST, Some("cancel")) => found(state, id).and_then(|_| {
            let message = "Cannot cancel a synchronous response.";
            Err(SimApiError::bad_request(message, "response_id"))
        }),
        (&Method::DELETE, None) => delete(state, id),
        _ => return None,
    };
    Some(match answer {
        Ok(answer) => body::json(StatusCode::OK, &answer),
        Err(error) => error.into_response(),
    })
}

fn found(state: &ServerState, id: &str) -> Result<std::sync::Arc<StoredResponse>, SimApiError> {
    let stored = state.responses.get(id);
    stored.ok_or_else(|| SimApiError::unknown_response(id))
}

fn delete(state: &ServerState, id: &str) -> Result<Value, SimApiError> {
    if !state.responses.remove(id) {
        return Err(SimApiError::unknown_response(id));
    }
    Ok(json!({"id": id, "object": "response", "deleted": true}))
}

/// Lists the input's items, the latest first.
fn items(response: &StoredResponse) -> Value {
    let text = |text: &Value| json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]});
    let mut items: Vec<Value> = match &response.input {
        Value::Array(items) => items.clone(),
        input => vec![text(input)],
    };
    for (number, item) in items.iter_mut().enumerate() {
        if let Some(item) = item.as_object_mut() {
            item.entry("type").or_insert_with(|| json!("message"));
            item.insert("id".to_owned(), json!(format!("item_{number}")));
        }
    }
    items.reverse();
    json!({
        "object": "list",
        "first_id": items.first().map(|item| &item["id"]),
        "last_id": items.last().map(|item| &item["id"]),
        "has_more": false,
        "data": items,
    })
}
