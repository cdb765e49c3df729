//! Operations of a router that are more than a call of it, and results as objects of Python.

use std::sync::Arc;

use pyo3::{IntoPyObjectExt, intern, prelude::*, types::PyDict};
use serde_json::Value;
use warmroute::embed::{
    BestWorker, CallError, DecisionId, GenerationQuery, PotentialLoad, PrefixMatch, WorkerReport,
};

use super::{
    OpenRouter,
    arguments::{GenerationArguments, RouteFields, TokenArguments},
    stream::TokenStream,
};
use crate::{errors::error, json, process_runtime};

/// The result of an operation.
pub(super) trait IntoPython {
    /// Returns it as an object of Python, which the caller of the operation gets.
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

/// The tracking of a request that nobody knows of yet: dropping it ends the tracking.
pub(super) struct NewTracking {
    router: Arc<OpenRouter>,
    /// The request, and the decision that tracks it. `None`: the request is not tracked, or the
    /// decision has reached the caller.
    tracked: Option<(String, DecisionId)>,
}

impl NewTracking {
    fn of(
        router: Arc<OpenRouter>,
        request_id: Option<String>,
        decision: Option<DecisionId>,
    ) -> Self {
        Self {
            router,
            tracked: request_id.zip(decision),
        }
    }

    /// Leaves the tracking to the caller.
    fn hand_over(mut self) {
        self.tracked = None;
    }
}

impl Drop for NewTracking {
    fn drop(&mut self) {
        if let (Some((id, decision)), Ok(runtime)) = (&self.tracked, process_runtime::current()) {
            // This may be a thread of Python.
            let _context = runtime.enter();
            self.router.abandon(id, *decision);
        }
    }
}

/// The worker of a prompt.
pub(super) struct ChosenWorker {
    best: BestWorker,
    tracking: NewTracking,
}

pub(super) async fn best_worker(
    router: Arc<OpenRouter>,
    arguments: TokenArguments,
) -> Result<ChosenWorker, CallError> {
    let best = router.best_worker(&arguments.query()).await?;
    Ok(ChosenWorker {
        tracking: NewTracking::of(router, arguments.request_id, best.reserved_by),
        best,
    })
}

impl IntoPython for ChosenWorker {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Self { best, tracking } = self;
        let row = (&*best.worker, best.dp_rank, best.overlap_blocks).into_py_any(py)?;
        tracking.hand_over();
        Ok(row)
    }
}

/// The worker of a prompt, without its rank.
pub(super) struct ChosenWorkerId(ChosenWorker);

pub(super) async fn best_worker_id(
    router: Arc<OpenRouter>,
    arguments: TokenArguments,
) -> Result<ChosenWorkerId, CallError> {
    best_worker(router, arguments).await.map(ChosenWorkerId)
}

impl IntoPython for ChosenWorkerId {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let ChosenWorker { best, tracking } = self.0;
        let row = (&*best.worker, best.overlap_blocks).into_py_any(py)?;
        tracking.hand_over();
        Ok(row)
    }
}

/// A receipt.
pub(super) struct MadeDecision {
    receipt: Value,
    tracking: NewTracking,
}

pub(super) async fn decide(
    router: Arc<OpenRouter>,
    fields: RouteFields,
) -> Result<MadeDecision, CallError> {
    let RouteFields {
        mut body,
        request_id,
        ..
    } = fields;
    if !body.contains_key("model") {
        body.insert("model".to_owned(), Value::from(&*router.only_model()?));
    }
    let receipt = router.decide(Value::Object(body).to_string()).await?;
    let receipt: Value = serde_json::from_slice(&receipt).unwrap_or_default();
    let decision = receipt["id"].as_str().and_then(|id| id.parse().ok());
    Ok(MadeDecision {
        tracking: NewTracking::of(router, request_id, decision),
        receipt,
    })
}

impl IntoPython for MadeDecision {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let receipt = json::to_python(py, &self.receipt)?;
        self.tracking.hand_over();
        Ok(receipt)
    }
}

pub(super) async fn potential_loads(
    router: Arc<OpenRouter>,
    arguments: TokenArguments,
) -> Result<Vec<PotentialLoad>, CallError> {
    router.potential_loads(&arguments.query()).await
}

impl IntoPython for Vec<PotentialLoad> {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let row = |load: PotentialLoad| -> PyResult<Bound<'_, PyDict>> {
            let row = PyDict::new(py);
            row.set_item(intern!(py, "worker_id"), &*load.worker_id)?;
            row.set_item(intern!(py, "dp_rank"), load.dp_rank)?;
            let (prefill, decode) = (
                intern!(py, "potential_prefill_tokens"),
                intern!(py, "potential_decode_blocks"),
            );
            row.set_item(prefill, load.potential_prefill_tokens)?;
            row.set_item(decode, load.potential_decode_blocks)?;
            Ok(row)
        };
        let rows: PyResult<Vec<_>> = self.into_iter().map(row).collect();
        rows?.into_py_any(py)
    }
}

impl IntoPython for Vec<PrefixMatch> {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let matches = PyDict::new(py);
        for found in self {
            matches.set_item((&*found.worker, found.dp_rank), found.blocks)?;
        }
        matches.into_py_any(py)
    }
}

impl IntoPython for Vec<WorkerReport> {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let rows = serde_json::to_value(&self);
        let rows = rows.map_err(|failed| error("internal", failed.to_string()))?;
        json::to_python(py, &rows)
    }
}

impl IntoPython for usize {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

impl IntoPython for bool {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

impl IntoPython for () {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

impl IntoPython for String {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

pub(super) async fn generate(
    router: Arc<OpenRouter>,
    generation: GenerationArguments,
) -> Result<TokenStream, CallError> {
    let query = GenerationQuery {
        model: generation.model.as_deref(),
        token_ids: &generation.token_ids,
        stop_conditions: generation.stop_conditions,
        sampling_options: generation.sampling_options,
        router_config_override: generation.router_config_override,
        worker: generation.worker.as_deref(),
        api_key: generation.api_key,
    };
    let stream = router.generate(&query).await?;
    Ok(TokenStream::new(stream, router))
}
