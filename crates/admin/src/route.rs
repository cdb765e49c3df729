//! `POST /v1/route`, dry run only: shows operators which target a request would get.
//!
//! The decision comes from the request path through an injected function: this crate has no routing
//! of its own.

use std::{fmt, pin::Pin, sync::Arc};

use axum::{
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::StatusCode,
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use routing::receipt::Receipt;

use crate::response;

type DryRunFuture = Pin<Box<dyn Future<Output = Result<Receipt, ApiError>> + Send>>;

/// Dry run of the routing decision for the request in a body, without any effect.
#[derive(Clone)]
pub struct DryRun {
    decide: Arc<dyn Fn(Bytes) -> DryRunFuture + Send + Sync>,
    /// Longest accepted body, in bytes.
    pub(crate) max_body_bytes: usize,
}

impl DryRun {
    /// Creates the dry run from `decide`, with bodies of at most `max_body_bytes`.
    pub fn new<F>(
        max_body_bytes: usize,
        decide: impl Fn(Bytes) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Receipt, ApiError>> + Send + 'static,
    {
        Self {
            decide: Arc::new(move |body| Box::pin(decide(body))),
            max_body_bytes,
        }
    }
}

impl fmt::Debug for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DryRun")
            .field("max_body_bytes", &self.max_body_bytes)
            .finish_non_exhaustive()
    }
}

pub(crate) async fn dry_run(
    State(dry_run): State<DryRun>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(error) => return response::error(&unread(&error, dry_run.max_body_bytes)),
    };
    match (dry_run.decide)(body).await {
        Ok(receipt) => response::json(&receipt),
        Err(error) => response::error(&error),
    }
}

pub(crate) async fn post_only() -> Response {
    let message = "/v1/route on the admin listener answers POST only, and keeps no reservations";
    response::error(&ApiError::new(ErrorCode::MethodNotAllowed, message))
}

fn unread(error: &BytesRejection, most: usize) -> ApiError {
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!(
            "the request body has more than {most} bytes, the most that server.max_body_bytes accepts"
        );
        return ApiError::new(ErrorCode::BodyTooLarge, message);
    }
    ApiError::new(
        ErrorCode::InvalidRequest,
        "the request body ended early or is not validly framed",
    )
}
