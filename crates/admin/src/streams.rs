//! `GET /admin/streams`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::json;

use crate::{AdminParts, response};

pub(crate) async fn list(State(parts): State<Arc<AdminParts>>) -> Response {
    response::json(&json!({"streams": parts.fleet.streams()}))
}
