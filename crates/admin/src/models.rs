//! `GET /admin/models`.

use std::sync::Arc;

use api::ModelReports;
use axum::{extract::State, response::Response};
use fleet::Fleet;

use crate::response;

pub(crate) async fn list(State(fleet): State<Arc<Fleet>>) -> Response {
    response::json(&ModelReports {
        models: fleet.snapshot().model_reports(),
    })
}
