//! `GET /openapi.json`.

use axum::response::Response;

use crate::response;

pub(crate) async fn document() -> Response {
    response::json(&api::openapi::document(env!("CARGO_PKG_VERSION")))
}
