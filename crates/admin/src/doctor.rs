//! `GET /admin/doctor`: the agreement of router and engines, checked now.
//!
//! The check is an injected function. Only one runs at a time: it queries every engine.

use std::{fmt, pin::Pin, sync::Arc};

use api::{DoctorReport, openapi::Role};
use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::Uri,
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::response;

type DoctorFuture = Pin<Box<dyn Future<Output = DoctorReport> + Send>>;

/// The check of the running settings and their workers.
#[derive(Clone)]
pub struct Doctor {
    check: Arc<dyn Fn(bool) -> DoctorFuture + Send + Sync>,
    running: Arc<Mutex<()>>,
}

impl Doctor {
    /// Creates the doctor from `check`; its argument decides whether requests may be sent to the
    /// engines.
    pub fn new<F>(check: impl Fn(bool) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = DoctorReport> + Send + 'static,
    {
        Self {
            check: Arc::new(move |probe| Box::pin(check(probe))),
            running: Arc::default(),
        }
    }
}

impl fmt::Debug for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doctor").finish_non_exhaustive()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DoctorQuery {
    /// Whether requests may be sent to the engines, which needs the role `operate`.
    probe: bool,
}

/// Returns the role that a query needs.
pub(crate) fn needed(uri: &Uri) -> Role {
    match Query::<DoctorQuery>::try_from_uri(uri) {
        Ok(Query(DoctorQuery { probe: true })) => Role::Operate,
        _ => Role::Read,
    }
}

pub(crate) async fn report(
    State(doctor): State<Doctor>,
    query: Result<Query<DoctorQuery>, QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        return response::error(&ApiError::new(
            ErrorCode::InvalidRequest,
            "probe is not true or false: send ?probe=true",
        ));
    };
    // A caller that hangs up ends its check and releases the lock; one with requests to the engines
    // is audited and goes on to its end.
    let Ok(_running) = doctor.running.try_lock() else {
        let message = "another look is under way: ask again when it has ended";
        return response::error(&ApiError::new(ErrorCode::Conflict, message));
    };
    response::json(&(doctor.check)(query.probe).await)
}
