//! One HTTP request to one worker, with its key, a time limit and a size limit.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use net::{
    WorkerUrl,
    fetch::{self, FetchError, FetchedReply},
};

use crate::{EngineKind, ProblemKind, WorkerProblem, worker_machine::CheckOutcome};

/// The data-parallel rank that a request is for.
const RANK_HEADER: &str = "x-data-parallel-rank";

/// HTTP client for the probes of one worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbeClient {
    url: WorkerUrl,
    headers: HeaderMap,
    timeout: Duration,
}

/// The reason why a worker is not ready, for the state machine and for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeError {
    pub(crate) check: CheckOutcome,
    pub(crate) problem: WorkerProblem,
}

impl ProbeError {
    pub(crate) fn failed(kind: ProblemKind, text: impl Into<Arc<str>>) -> Self {
        Self {
            check: CheckOutcome::Failed,
            problem: WorkerProblem::new(kind, text),
        }
    }

    pub(crate) fn loading(path: &str, status: StatusCode) -> Self {
        let text = format!(
            "answered {path} with {}: the engine is loading, wait",
            status.as_u16()
        );
        Self {
            check: CheckOutcome::Loading,
            problem: WorkerProblem::new(ProblemKind::Loading, text),
        }
    }
}

impl ProbeClient {
    pub(crate) fn new(
        url: WorkerUrl,
        engine: EngineKind,
        api_key: Option<&config::Secret>,
        timeout: Duration,
    ) -> Self {
        let headers = crate::credentials(engine, api_key.map(|key| key.expose())).collect();
        Self {
            url,
            headers,
            timeout,
        }
    }

    /// Returns the client with a time limit of at most this.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        Self {
            timeout: self.timeout.min(timeout),
            ..self.clone()
        }
    }

    /// Returns the client with a time limit of its own, which may be longer.
    pub(crate) fn limited_to(&self, timeout: Duration) -> Self {
        Self {
            timeout,
            ..self.clone()
        }
    }

    /// Returns the client of requests for this data-parallel rank.
    pub(crate) fn for_rank(mut self, rank: u32) -> Self {
        self.headers.insert(RANK_HEADER, HeaderValue::from(rank));
        self
    }

    pub(crate) fn url(&self) -> &WorkerUrl {
        &self.url
    }

    pub(crate) async fn get(
        &self,
        path: &str,
        max_bytes: usize,
    ) -> Result<FetchedReply, FetchError> {
        fetch::get(&self.url, path, &self.headers, self.timeout, max_bytes).await
    }

    /// Sends a HEAD, whose reply has no body.
    pub(crate) async fn head(&self, path: &str) -> Result<FetchedReply, FetchError> {
        fetch::head(&self.url, path, &self.headers, self.timeout).await
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        body: Option<Bytes>,
        max_bytes: usize,
    ) -> Result<FetchedReply, FetchError> {
        fetch::post(
            &self.url,
            path,
            &self.headers,
            body,
            self.timeout,
            max_bytes,
        )
        .await
    }

    /// Returns the body of a 200 reply. `Some(None)`: the worker answered that it has no such
    /// route; `None`: it did not answer, or not now.
    pub(crate) async fn fetch(&self, path: &str, max_bytes: usize) -> Option<Option<Bytes>> {
        let reply = self.get(path, max_bytes).await.ok()?;
        let later = reply.status.is_server_error() || reply.status == StatusCode::TOO_MANY_REQUESTS;
        (!later).then(|| (reply.status == StatusCode::OK).then_some(reply.body))
    }

    /// Returns the body of a 200 reply; `None` for any other outcome.
    pub(crate) async fn get_ok(&self, path: &str, max_bytes: usize) -> Option<Bytes> {
        let reply = self.get(path, max_bytes).await.ok()?;
        (reply.status == StatusCode::OK).then_some(reply.body)
    }
}

/// Returns the meaning and the remedy of a failed exchange.
pub(crate) fn probe_error(error: &FetchError) -> ProbeError {
    if error.is_refused() {
        return ProbeError {
            check: CheckOutcome::Refused,
            problem: WorkerProblem::refused(),
        };
    }
    match error {
        FetchError::Connect { source, .. }
            if net::LocalFault::of(source).is_some_and(net::LocalFault::is_exhaustion) =>
        {
            ProbeError {
                check: CheckOutcome::NotMade,
                problem: WorkerProblem::new(
                    ProblemKind::NotAsked,
                    format!("cannot be asked ({source}): see to the limits of this process"),
                ),
            }
        }
        FetchError::Connect { source, .. } if source.kind() == io::ErrorKind::InvalidData => {
            ProbeError::failed(
                ProblemKind::Untrusted,
                format!(
                    "could not prove who it is ({source}): check its certificate and the url's scheme and host, or name its \
                 authority as this worker's tls.ca"
                ),
            )
        }
        FetchError::Connect { source, .. } => ProbeError::failed(
            unconnected(source),
            format!("cannot be reached ({source}): check the url and the network"),
        ),
        FetchError::TimedOut { path, limit, .. } => ProbeError::failed(
            ProblemKind::TimedOut,
            format!("did not answer {path} within {limit:?}: look at the engine's log"),
        ),
        FetchError::TooLarge { path, limit, .. } => ProbeError::failed(
            ProblemKind::Unusable,
            format!(
                "answered {path} with more than {limit} bytes: check that the url is an engine's"
            ),
        ),
        FetchError::Protocol { path, .. } => ProbeError::failed(
            ProblemKind::Unusable,
            format!(
                "did not answer {path} with a whole http reply: check that the url is an engine's"
            ),
        ),
        FetchError::Request { path, .. } => ProbeError::failed(
            ProblemKind::NotAsked,
            format!("cannot be asked for {path}: use an absolute path in plain ascii"),
        ),
    }
}

fn unconnected(error: &io::Error) -> ProblemKind {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ProblemKind::Forbidden,
        io::ErrorKind::TimedOut => ProblemKind::TimedOut,
        _ => ProblemKind::Unreachable,
    }
}

/// Returns the meaning and the remedy of an unexpected status.
pub(crate) fn unexpected(path: &str, status: StatusCode) -> ProbeError {
    let status = status.as_u16();
    ProbeError::failed(
        ProblemKind::Status,
        match status {
            401 | 403 => {
                format!(
                    "answered {path} with {status}: set this worker's api_key to the engine's key"
                )
            }
            404 => format!(
                "answered {path} with 404: check the url, or set this worker's health_check.endpoint"
            ),
            _ => format!("answered {path} with {status}: look at the engine's log"),
        },
    )
}
