//! `GET /admin/streams`.

use std::sync::Arc;

use api::StreamReports;
use axum::{extract::State, response::Response};

use crate::{AdminParts, response};

pub(crate) async fn list(State(parts): State<Arc<AdminParts>>) -> Response {
    response::json(&StreamReports {
        streams: parts.fleet.streams(),
    })
}
