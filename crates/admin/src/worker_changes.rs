//! Workers that operators add and remove: `POST /admin/workers`, `PUT` and `DELETE
//! /admin/workers/{name}`, `POST /admin/workers/{name}/drain` and `/resume`.

use std::{sync::Arc, time::Duration};

use api::WorkerRemoval;
use axum::{
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use dialect::{ApiError, ErrorCode};
use fleet::{WorkerState, WorkerView};
use serde_json::{Map, Value};

use crate::{
    Control, DrainRequest, NamedWorker, WorkerRejection,
    control::run_blocking,
    response,
    workers::{self, WorkerReporter},
};

/// Minimum lease time. The caller renews its lease: a shorter one would expire after one slow call.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn add(
    State(control): State<Arc<dyn Control>>,
    State(workers): State<WorkerReporter>,
    body: Bytes,
) -> Response {
    match read(None, &body) {
        Ok(worker) => take(&control, &workers, worker, false).await,
        Err(error) => response::error(&error),
    }
}

pub(crate) async fn put(
    State(control): State<Arc<dyn Control>>,
    State(workers): State<WorkerReporter>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    match read(Some(name), &body) {
        Ok(worker) => take(&control, &workers, worker, true).await,
        Err(error) => response::error(&error),
    }
}

async fn take(
    control: &Arc<dyn Control>,
    workers: &WorkerReporter,
    worker: NamedWorker,
    replace: bool,
) -> Response {
    let (name, replaced) =
        match run_blocking(control, move |control| control.add_worker(worker, replace)).await {
            Ok(taken) => taken,
            Err(refused) => return rejected(refused),
        };
    let status = if replaced {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let snapshot = workers.fleet.snapshot();
    match snapshot.worker_named(&name) {
        Some(worker) => (status, response::json(&workers.report(worker))).into_response(),
        None => response::error(&workers::not_found(&name)),
    }
}

/// Reads an entry of `workers`, and its lease time.
fn read(name: Option<String>, body: &[u8]) -> Result<NamedWorker, ApiError> {
    let entry = serde_json::from_slice(body).map_err(|error| {
        let message = format!(
            r#"the body is no JSON object ({error}): send an entry of workers, such as {{"name": "w1", "url": "http://10.0.0.5:8000"}}"#
        );
        ApiError::new(ErrorCode::InvalidJson, message)
    })?;
    NamedWorker::of_body(name, entry)
}

impl NamedWorker {
    /// Reads the members of a body that adds a worker: an entry of `workers`, and `lease_ttl`.
    ///
    /// # Errors
    ///
    /// The lease time is none, or the entry has another name than `name`.
    pub fn of_body(name: Option<String>, mut entry: Map<String, Value>) -> Result<Self, ApiError> {
        let lease_ttl = entry
            .remove("lease_ttl")
            .filter(|ttl| !ttl.is_null())
            .map(lease)
            .transpose()?;
        if let Some(name) = &name {
            let own = entry.entry("name").or_insert_with(|| name.as_str().into());
            if own.as_str() != Some(name.as_str()) {
                let message = format!(
                    "name is {own}, and the path says {name:?}: leave it out, or send the same"
                );
                return Err(ApiError::new(ErrorCode::InvalidRequest, message).param("name"));
            }
        }
        Ok(Self {
            name,
            entry,
            lease_ttl,
        })
    }
}

fn lease(value: Value) -> Result<Duration, ApiError> {
    let ttl = match &value {
        Value::String(text) => config::duration(text),
        Value::Number(seconds) => seconds.as_u64().map(Duration::from_secs),
        _ => None,
    };
    ttl.filter(|ttl| (SHORTEST_LEASE..=LONGEST_LEASE).contains(ttl))
        .ok_or_else(|| {
            let message = format!(
                r#"lease_ttl is {value}: expected a duration from 1s to 24h, such as "10s""#
            );
            ApiError::new(ErrorCode::InvalidRequest, message).param("lease_ttl")
        })
}

fn rejected(refused: WorkerRejection) -> Response {
    response::error(&refused.into())
}

impl From<WorkerRejection> for ApiError {
    fn from(refused: WorkerRejection) -> Self {
        match refused {
            WorkerRejection::Exists(name) => {
                let message = format!(
                    "a worker is named {name:?} already: PUT /admin/workers/{name} replaces it"
                );
                Self::new(ErrorCode::WorkerExists, message).param("name")
            }
            WorkerRejection::Forbidden(reason) => {
                Self::new(ErrorCode::DestinationForbidden, reason).param("url")
            }
            WorkerRejection::Problems(problems) => {
                let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
                Self::new(ErrorCode::InvalidRequest, text.join("; "))
            }
        }
    }
}

pub(crate) async fn remove(
    State(control): State<Arc<dyn Control>>,
    State(workers): State<WorkerReporter>,
    Path(name): Path<String>,
) -> Response {
    let before = workers.fleet.snapshot();
    let worker = before
        .worker_named(&name)
        .map(|worker| removal(&workers, worker, WorkerState::Draining));
    let leaving = name.clone();
    match run_blocking(&control, move |control| control.remove_worker(&leaving)).await {
        Ok(true) => {}
        Ok(false) => return response::error(&workers::not_found(&name)),
        Err(refused) => return rejected(refused),
    }
    // The worker is absent because an earlier call removed it.
    response::json(&worker.unwrap_or_else(|| absent(name)))
}

pub(crate) async fn drain(
    State(control): State<Arc<dyn Control>>,
    State(workers): State<WorkerReporter>,
    Path(name): Path<String>,
) -> Response {
    drained(&control, &workers, (name, DrainRequest::Drain)).await
}

pub(crate) async fn resume(
    State(control): State<Arc<dyn Control>>,
    State(workers): State<WorkerReporter>,
    Path(name): Path<String>,
) -> Response {
    drained(&control, &workers, (name, DrainRequest::Resume)).await
}

async fn drained(
    control: &Arc<dyn Control>,
    workers: &WorkerReporter,
    (name, drain): (String, DrainRequest),
) -> Response {
    let named = name.clone();
    let is_known = run_blocking(control, move |control| control.drain_worker(&named, drain)).await;
    let snapshot = workers.fleet.snapshot();
    if !is_known {
        return response::error(&workers::not_found(&name));
    }
    let worker = snapshot.worker_named(&name);
    let worker = worker.map(|worker| removal(workers, worker, worker.health.state));
    // The drain of a worker that is gone may have been resumed.
    response::json(&worker.unwrap_or_else(|| absent(name)))
}

/// Returns the answer about a worker that this router does not have.
fn absent(name: String) -> WorkerRemoval {
    WorkerRemoval {
        name,
        state: "removed".into(),
        in_flight: 0,
        safe_to_remove: true,
        warm_tokens_lost: 0,
    }
}

/// Returns the running requests of a worker, and the cache that its end would cost: tokens in
/// remote storage are shared and outlive it.
fn removal(workers: &WorkerReporter, worker: &WorkerView, state: WorkerState) -> WorkerRemoval {
    let in_flight = workers.load(worker).in_flight;
    let warm = workers.warm_blocks(worker);
    let warm_blocks = warm.device + warm.host + warm.disk;
    WorkerRemoval {
        name: worker.name.to_string(),
        state: state.as_str().into(),
        in_flight: in_flight.into(),
        safe_to_remove: in_flight == 0 && state == WorkerState::Draining,
        warm_tokens_lost: warm_blocks.saturating_mul(u64::from(worker.cache.block_size.tokens())),
    }
}
