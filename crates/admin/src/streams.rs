//! `GET /admin/streams`.

use std::sync::Arc;

use api::StreamReports;
use axum::{extract::State, response::Response};
use fleet::Fleet;

use crate::response;

pub(crate) async fn list(State(fleet): State<Arc<Fleet>>) -> Response {
    response::json(&StreamReports {
        streams: fleet.streams(),
    })
}
