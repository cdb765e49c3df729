//! `GET /metrics`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use dialect::{ApiError, ErrorCode};

use crate::{AdminParts, response};

pub(crate) async fn text(State(parts): State<Arc<AdminParts>>) -> Response {
    if !parts.serve_metrics {
        return response::error(&ApiError::new(
            ErrorCode::UnknownRoute,
            "metrics are switched off: set metrics.enabled",
        ));
    }
    match page(&parts) {
        Ok(page) => response::raw(
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            page.into_bytes(),
        ),
        Err(error) => response::error(&error),
    }
}

/// Returns all families in the scrape format.
pub(crate) fn page(parts: &AdminParts) -> Result<String, ApiError> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &parts.registry.read())
        .map_err(|_| ApiError::new(ErrorCode::Internal, "the metrics could not be written"))?;
    Ok(text)
}
