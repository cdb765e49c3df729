//! `GET /metrics`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use dialect::{ApiError, ErrorCode};
use parking_lot::RwLock;
use prometheus_client::registry::Registry;

use crate::response;

/// The metrics of all parts.
#[derive(Clone, Debug)]
pub struct MetricsPage {
    /// The metric families.
    pub registry: Arc<RwLock<Registry>>,
    /// Build features of this program, for its own description.
    pub features: &'static str,
    /// Whether `/metrics` is served.
    pub served: bool,
}

impl MetricsPage {
    /// Returns all families in the scrape format.
    ///
    /// # Errors
    ///
    /// A family cannot be written.
    pub fn text(&self) -> Result<String, ApiError> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry.read())
            .map_err(|_| ApiError::new(ErrorCode::Internal, "the metrics could not be written"))?;
        Ok(text)
    }
}

pub(crate) async fn text(State(metrics): State<MetricsPage>) -> Response {
    if !metrics.served {
        return response::error(&ApiError::new(
            ErrorCode::UnknownRoute,
            "metrics are switched off: set metrics.enabled",
        ));
    }
    match metrics.text() {
        Ok(page) => response::raw(
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            page.into_bytes(),
        ),
        Err(error) => response::error(&error),
    }
}
