//! `GET /metrics`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use dialect::{ApiError, ErrorCode};

use crate::{AdminParts, answer};

pub(crate) async fn text(State(parts): State<Arc<AdminParts>>) -> Response {
    let Some(registry) = &parts.registry else {
        return answer::error(&ApiError::new(ErrorCode::UnknownRoute, "metrics are switched off: set metrics.enabled"));
    };
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry.read()) {
        Ok(()) => answer::raw("application/openmetrics-text; version=1.0.0; charset=utf-8", text.into_bytes()),
        Err(_) => answer::error(&ApiError::new(ErrorCode::Internal, "the metrics could not be written")),
    }
}
