//! `GET /admin/config`: the configuration in force with every key, secrets as `***`.

use std::sync::Arc;

use axum::{
    extract::{Query, State},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use serde::Deserialize;

use crate::{AdminParts, response};

#[derive(Debug, Deserialize)]
pub(crate) struct ConfigQuery {
    format: Option<String>,
}

pub(crate) async fn show(
    State(parts): State<Arc<AdminParts>>,
    Query(wish): Query<ConfigQuery>,
) -> Response {
    match wish.format.as_deref() {
        None | Some("json") => response::json(parts.control.settings().to_json()),
        Some("yaml") => response::raw(
            "application/yaml",
            parts.control.settings().to_yaml().into_bytes(),
        ),
        Some(_) => {
            let message = "format is neither json nor yaml: leave it out, or send ?format=yaml";
            response::error(&ApiError::new(ErrorCode::InvalidRequest, message).param("format"))
        }
    }
}
