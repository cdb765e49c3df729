//! `GET /admin/config`: the configuration in force with every key, secrets as `***`.

use std::sync::Arc;

use axum::{
    extract::{Query, State},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use serde::Deserialize;

use crate::{Control, response};

#[derive(Debug, Deserialize)]
pub(crate) struct ConfigQuery {
    format: Option<String>,
}

pub(crate) async fn show(
    State(control): State<Arc<dyn Control>>,
    Query(query): Query<ConfigQuery>,
) -> Response {
    match query.format.as_deref() {
        None | Some("json") => response::json(control.settings().to_json()),
        Some("yaml") => response::raw(
            "application/yaml",
            control.settings().to_yaml().into_bytes(),
        ),
        Some(_) => {
            let message = "format is neither json nor yaml: leave it out, or send ?format=yaml";
            response::error(&ApiError::new(ErrorCode::InvalidRequest, message).param("format"))
        }
    }
}
