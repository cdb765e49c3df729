//! `POST /admin/drain` and `GET /admin/drain/status`: no new client connections, and running
//! requests finish.
//!
//! The drain itself is done by injected functions. It cannot be undone, and the admin listener
//! keeps answering: the outcome stays readable until the process is stopped.

use std::{fmt, sync::Arc, time::Duration};

use api::DrainReport;
use axum::{
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::response;

/// Progress of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStatus {
    /// When it began; `None`: it has not begun.
    pub since: Option<OffsetDateTime>,
    /// Requests still running.
    pub open_streams: u64,
    /// Connections that were cut with a request running.
    pub cut_streams: u64,
}

/// The drain functions: begin, and progress.
#[derive(Clone)]
pub struct Drain {
    begin: Arc<dyn Fn(Option<Duration>) + Send + Sync>,
    status: Arc<dyn Fn() -> DrainStatus + Send + Sync>,
}

impl Drain {
    /// Creates the drain. `begin` gets the time limit of running requests, if the caller gives one;
    /// a repeated call does nothing.
    pub fn new(
        begin: impl Fn(Option<Duration>) + Send + Sync + 'static,
        status: impl Fn() -> DrainStatus + Send + Sync + 'static,
    ) -> Self {
        Self {
            begin: Arc::new(begin),
            status: Arc::new(status),
        }
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").finish_non_exhaustive()
    }
}

pub(crate) async fn begin(
    State(drain): State<Drain>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let requested = match body {
        Ok(body) => timeout(&body),
        Err(_) => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "the request body could not be read to its end",
        )),
    };
    match requested {
        Ok(timeout) => {
            (drain.begin)(timeout);
            shown((drain.status)())
        }
        Err(error) => response::error(&error),
    }
}

pub(crate) async fn status(State(drain): State<Drain>) -> Response {
    shown((drain.status)())
}

pub(crate) async fn post_only() -> Response {
    let message =
        "/admin/drain answers POST only: GET /admin/drain/status tells how far a drain is";
    response::error(&ApiError::new(ErrorCode::MethodNotAllowed, message))
}

fn shown(status: DrainStatus) -> Response {
    response::json(&DrainReport {
        draining: status.since.is_some(),
        since: status.since.map(net::rfc3339),
        open_streams: status.open_streams,
        cut_streams: status.cut_streams,
    })
}

/// Returns the time limit of running requests, if the body gives one. No body counts as an empty
/// object.
fn timeout(body: &[u8]) -> Result<Option<Duration>, ApiError> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|_| {
        ApiError::new(
            ErrorCode::InvalidJson,
            r#"the body is no JSON object: send {"timeout": "300s"}"#,
        )
    })?;
    if let Some(other) = fields.keys().find(|key| *key != "timeout") {
        let other: String = other.chars().filter(|c| !c.is_control()).take(40).collect();
        let message =
            format!("the body has the unknown key {other:?}: expected timeout or nothing");
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    match fields.get("timeout") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let timeout = value.as_str().and_then(config::duration);
            let bad = || {
                let message = format!(
                    r#"timeout is no duration of at most {MOST_DAYS} days: expected, say, "300s""#
                );
                ApiError::new(ErrorCode::InvalidRequest, message).param("timeout")
            };
            timeout
                .filter(|timeout| *timeout <= MOST)
                .map(Some)
                .ok_or_else(bad)
        }
    }
}

/// Longest drain in days: the maximum that the configuration accepts.
const MOST_DAYS: u64 = 366;
const MOST: Duration = Duration::from_secs(MOST_DAYS * 24 * 3600);

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("V43")]
    fn a_drain_body_may_only_set_the_grace_time() {
        for (body, seconds) in [
            ("", None),
            (" \n", None),
            ("{}", None),
            (r#"{"timeout": null}"#, None),
            (r#"{"timeout": "5m"}"#, Some(300)),
            (r#"{"timeout": "0s"}"#, Some(0)),
        ] {
            assert_eq!(
                timeout(body.as_bytes()).unwrap(),
                seconds.map(Duration::from_secs),
                "{body}"
            );
        }
        for (body, code) in [
            ("[]", ErrorCode::InvalidJson),
            ("{", ErrorCode::InvalidJson),
            (r#"{"after": "5m"}"#, ErrorCode::InvalidRequest),
            (r#"{"timeout": "soon"}"#, ErrorCode::InvalidRequest),
            (r#"{"timeout": 5}"#, ErrorCode::InvalidRequest),
            (r#"{"timeout": "367d"}"#, ErrorCode::InvalidRequest),
        ] {
            assert_eq!(timeout(body.as_bytes()).unwrap_err().code, code, "{body}");
        }
    }
}
