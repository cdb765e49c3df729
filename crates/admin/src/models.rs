//! `GET /admin/models`.

use std::sync::Arc;

use api::ModelReports;
use axum::{extract::State, response::Response};

use crate::{AdminParts, response};

pub(crate) async fn list(State(parts): State<Arc<AdminParts>>) -> Response {
    response::json(&ModelReports {
        models: parts.fleet.snapshot().model_reports(),
    })
}
