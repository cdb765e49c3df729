//! `POST /admin/reload`, `POST /admin/config/rollback` and `GET /admin/config/history`.

use std::sync::Arc;

use api::{ConfigHistory, ReloadOutcome, ReloadRequest, RollbackRequest};
use axum::{
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use dialect::{ApiError, ErrorCode};

use crate::{Control, control::run_blocking, response};

pub(crate) async fn reload(State(control): State<Arc<dyn Control>>, body: Bytes) -> Response {
    let request = match body.trim_ascii() {
        [] => Ok(ReloadRequest::default()),
        body => serde_json::from_slice::<ReloadRequest>(body),
    };
    match request {
        Ok(request) => {
            shown(&run_blocking(&control, move |control| control.reload(request.dry_run)).await)
        }
        Err(error) => response::error(&bad_body(&error, r#"{"dry_run": true} or nothing"#)),
    }
}

pub(crate) async fn rollback(State(control): State<Arc<dyn Control>>, body: Bytes) -> Response {
    let which: RollbackRequest = match serde_json::from_slice(&body) {
        Ok(which) => which,
        Err(error) => return response::error(&bad_body(&error, r#"{"id": 3}"#)),
    };
    match run_blocking(&control, move |control| control.rollback(which.id)).await {
        Some(reloaded) => shown(&reloaded),
        None => {
            let message = format!(
                "no applied configuration has the id {}: GET /admin/config/history lists them",
                which.id
            );
            response::error(&ApiError::new(ErrorCode::InvalidRequest, message).param("id"))
        }
    }
}

pub(crate) async fn history(State(control): State<Arc<dyn Control>>) -> Response {
    let history = run_blocking(&control, |control| control.history()).await;
    response::json(&ConfigHistory { history })
}

pub(crate) async fn post_only() -> Response {
    let message = "this call answers POST only: GET /admin/config shows the configuration in force";
    response::error(&ApiError::new(ErrorCode::MethodNotAllowed, message))
}

fn shown(reloaded: &ReloadOutcome) -> Response {
    let status = if reloaded.problems.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::BAD_REQUEST
    };
    (status, response::json(reloaded)).into_response()
}

fn bad_body(error: &serde_json::Error, expected: &str) -> ApiError {
    ApiError::new(
        ErrorCode::InvalidJson,
        format!("the body cannot be read ({error}): send {expected}"),
    )
}
