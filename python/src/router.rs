//! `Router`: the whole router inside a Python process.
//!
//! Each operation is a future, which the method `operation` runs as an awaitable call, and
//! `operation_blocking` on the calling thread; both without the interpreter's lock.

mod arguments;
mod exit;
mod lifetime;
mod operations;
mod stream;

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::{
    exceptions::PyDeprecationWarning,
    prelude::*,
    types::{PyDict, PyTuple},
};
use tokio::{runtime::Runtime, sync::oneshot};
use warmroute::embed::CallError;

use self::{
    arguments::{GenerationArguments, RouteFields, TokenArguments},
    lifetime::{OpenRouter, StartEnd, begin_start, close},
    operations::IntoPython,
    stream::TokenStream,
};
use crate::{
    call::{Call, Output},
    errors::error,
    json, process_runtime,
};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RouterHandle>()?;
    module.add_class::<TokenStream>()?;
    exit::register(module)
}

/// A router in this process: it chooses the worker for a prompt, or sends the request there.
///
/// It probes its workers, follows their KV events and keeps the block index, as the program does.
/// It listens only where its configuration names ``server.listen`` or ``admin.listen``. Several
/// routers in one process share nothing. The constructor waits on the calling thread until the
/// workers are known, or did not answer; in an event loop use ``start``.
///
/// Every method is a coroutine of ``asyncio``; its twin with ``_blocking`` behind its name waits on
/// the calling thread, with other threads running meanwhile. A router is a context manager, also an
/// asynchronous one, whose end closes it.
///
/// Args:
///     config: the configuration: a dict, or a text in YAML or JSON. Environment variables whose
///         names do not begin with ``WARMROUTE_`` fill ``${NAME}`` in it; none sets a key.
///     workers: URLs of workers, or ``NAME=URL``; they replace those of ``config``.
///
/// Raises:
///     WarmrouteError: the configuration has problems, all of which are in the message; or a
///         listener cannot be opened.
///
/// Example:
///     >>> with Router(workers=["http://127.0.0.1:8000"]) as router:
///     ...     worker, dp_rank, overlap_blocks = router.best_worker_blocking([1, 2, 3])
#[pyclass(frozen, name = "Router", module = "warmroute")]
#[derive(Debug)]
pub(crate) struct RouterHandle {
    /// `None` after the end.
    router: Mutex<Option<Arc<OpenRouter>>>,
}

/// Most tokens of a prompt with which an event loop is held up, for about a millisecond.
const INLINE_TOKENS: usize = 16_384;

impl RouterHandle {
    /// Returns the router, which is open, in the process that started it.
    fn open(&self) -> PyResult<Arc<OpenRouter>> {
        self.open_with_runtime().map(|(router, _)| router)
    }

    /// Returns the router as [`Self::open`] does, and the runtime: the id of the process is a call
    /// of the system, which a decision makes once.
    fn open_with_runtime(&self) -> PyResult<(Arc<OpenRouter>, &'static Runtime)> {
        let runtime = process_runtime::current()?;
        if process_runtime::is_exiting() {
            return Err(process_runtime::exiting());
        }
        let router = self.router.lock().clone();
        let closed = || error("draining", "the router is closed: create another one");
        Ok((router.ok_or_else(closed)?, runtime))
    }

    /// Returns the handle of a router that has started.
    fn of(started: StartEnd) -> PyResult<Self> {
        let started = started.map_err(|_| error("internal", "the start of the router failed"))?;
        let router = started.map_err(raised)?.claim();
        router.iter().for_each(exit::remember);
        Ok(Self {
            router: Mutex::new(router.map(OpenRouter::new)),
        })
    }

    /// Begins to close the router, and returns what ends with it; `None` where nothing is left to
    /// close: that was done before, the interpreter ends, or this is a fork.
    fn begin_close(&self) -> Option<oneshot::Receiver<()>> {
        let router = self.router.lock().take()?;
        if process_runtime::is_exiting() {
            return None;
        }
        close(router.shared()).ok()
    }

    /// Returns the awaitable call of an operation; `name` is the method's.
    fn call<F, T>(
        &self,
        name: &'static str,
        operation: impl FnOnce(Arc<OpenRouter>) -> F,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: IntoPython + Send + 'static,
    {
        let operation = operation(self.open()?);
        Ok(Call::new(name, async move { output(operation.await) }))
    }

    /// Returns the awaitable call of an operation with a prompt of so many tokens.
    fn call_with<F, T>(
        &self,
        name: &'static str,
        tokens: usize,
        operation: impl FnOnce(Arc<OpenRouter>) -> F,
    ) -> PyResult<Call>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
        T: IntoPython + Send + 'static,
    {
        if tokens <= INLINE_TOKENS {
            return self.call(name, operation);
        }
        let operation = operation(self.open()?);
        Ok(Call::long(name, async move { output(operation.await) }))
    }

    /// Begins to close the router, and returns the call that waits for the end.
    fn closing(&self, name: &'static str) -> Call {
        match self.begin_close() {
            Some(closed) => Call::new(name, async move {
                // Its sender ends with the close.
                let _ = closed.await;
                output(Ok(()))
            }),
            None => Call::done(name, output(Ok(()))),
        }
    }

    /// Runs an operation on this thread.
    fn run<F, T>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(Arc<OpenRouter>) -> F,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<T, CallError>> + Send,
        T: IntoPython + Send,
    {
        let (router, runtime) = self.open_with_runtime()?;
        let result = process_runtime::block_on_in(py, runtime, || operation(router))?;
        result.map_err(raised)?.into_python(py)
    }
}

/// Returns the output of an operation for its call.
fn output<T: IntoPython + Send + 'static>(result: Result<T, CallError>) -> Output {
    Box::new(move |py| result.map_err(raised)?.into_python(py))
}

/// Returns the exception of an error.
fn raised(failed: CallError) -> PyErr {
    error(&failed.code, failed.message)
}

#[pymethods]
impl RouterHandle {
    #[new]
    #[pyo3(signature = (config = None, workers = None))]
    fn new(
        py: Python<'_>,
        config: Option<&Bound<'_, PyAny>>,
        workers: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let settings = arguments::settings(config, workers.unwrap_or_default())?;
        let started = process_runtime::block_on(py, begin_start(settings)?)?;
        Self::of(started)
    }

    /// Start a router as the constructor does, without a wait on the calling thread: the event loop
    /// runs on meanwhile. A cancelled start leaves no router.
    ///
    /// Args:
    ///     config: as for the constructor.
    ///     workers: as for the constructor.
    ///
    /// Returns:
    ///     The router.
    ///
    /// Raises:
    ///     WarmrouteError: as for the constructor.
    ///
    /// Example:
    ///     >>> async def main():
    ///     ...     async with await Router.start(workers=["http://127.0.0.1:8000"]) as router:
    ///     ...         return await router.best_worker([1, 2, 3])
    #[staticmethod]
    #[pyo3(signature = (config = None, workers = None))]
    fn start(config: Option<&Bound<'_, PyAny>>, workers: Option<Vec<String>>) -> PyResult<Call> {
        let settings = arguments::settings(config, workers.unwrap_or_default())?;
        Ok(Call::new("Router.start", async move {
            let started = match begin_start(settings) {
                Ok(started) => Ok(started.await),
                Err(failed) => Err(failed),
            };
            let output: Output =
                Box::new(move |py| Ok(Py::new(py, Self::of(started?)?)?.into_any()));
            output
        }))
    }

    /// Choose the worker for a prompt.
    ///
    /// Without ``request_id`` the call changes nothing. With one, the prompt counts as load of the
    /// worker until ``free(request_id)``, at most ``routing.reservation_ttl`` after the last call
    /// about it; a cancelled call leaves none.
    ///
    /// Args:
    ///     token_ids: the prompt, 1 to 4194304 tokens: a list or another sequence of integers from
    ///         0 to 4294967295, ``bytes`` of native 32-bit integers, or a contiguous buffer of them
    ///         with one dimension, such as ``array.array('I')`` or a ``numpy.uint32`` array.
    ///     router_config_override: ``overlap_score_weight`` (0 to 100), ``router_temperature`` (0 to
    ///         10) or both, for this decision.
    ///     request_id: 1 to 128 visible ASCII characters.
    ///     model: the model; needed where the workers serve several.
    ///
    /// Returns:
    ///     The worker's name, its data-parallel rank, and the number of leading blocks of the prompt
    ///     that it is expected to have cached.
    ///
    /// Raises:
    ///     WarmrouteError: no worker can take the prompt, or an argument is wrong:
    ///         ``reservation_exists`` where the id is in use, ``model_not_found``,
    ///         ``invalid_request``, ``draining`` where the router is closed.
    ///     TypeError: an argument or a token is of another type.
    ///     ValueError: a token is out of range, a buffer has another layout, or there are too many
    ///         tokens.
    #[pyo3(signature = (token_ids, router_config_override = None, request_id = None, *, model = None))]
    fn best_worker(
        &self,
        token_ids: &Bound<'_, PyAny>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
        model: Option<String>,
    ) -> PyResult<Call> {
        let arguments = TokenArguments::read(token_ids, model, router_config_override, request_id)?;
        let tokens = arguments.tokens();
        self.call_with("Router.best_worker", tokens, |router| {
            operations::best_worker(router, arguments)
        })
    }

    /// Choose the worker for a prompt, as ``best_worker`` does, on this thread.
    #[pyo3(signature = (token_ids, router_config_override = None, request_id = None, *, model = None))]
    fn best_worker_blocking(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
        model: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let arguments = TokenArguments::read(token_ids, model, router_config_override, request_id)?;
        self.run(py, |router| operations::best_worker(router, arguments))
    }

    /// Choose the worker for a prompt, as ``best_worker`` does; deprecated, since it leaves out the
    /// data-parallel rank.
    ///
    /// Args:
    ///     token_ids: as for ``best_worker``.
    ///     router_config_override: as for ``best_worker``.
    ///     request_id: as for ``best_worker``.
    ///     model: as for ``best_worker``.
    ///
    /// Returns:
    ///     The worker's name, and the number of leading blocks of the prompt that it is expected to
    ///     have cached.
    #[pyo3(
        signature = (token_ids, router_config_override = None, request_id = None, *, model = None),
        warn(message = "best_worker_id is deprecated: call best_worker", category = PyDeprecationWarning)
    )]
    fn best_worker_id(
        &self,
        token_ids: &Bound<'_, PyAny>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
        model: Option<String>,
    ) -> PyResult<Call> {
        let arguments = TokenArguments::read(token_ids, model, router_config_override, request_id)?;
        let tokens = arguments.tokens();
        self.call_with("Router.best_worker_id", tokens, |router| {
            operations::best_worker_id(router, arguments)
        })
    }

    /// Choose the worker for a prompt, as ``best_worker_id`` does, on this thread; deprecated.
    #[pyo3(
        signature = (token_ids, router_config_override = None, request_id = None, *, model = None),
        warn(
            message = "best_worker_id_blocking is deprecated: call best_worker_blocking",
            category = PyDeprecationWarning
        )
    )]
    fn best_worker_id_blocking(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
        model: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let arguments = TokenArguments::read(token_ids, model, router_config_override, request_id)?;
        self.run(py, |router| operations::best_worker_id(router, arguments))
    }

    /// Return the load that every usable worker would have with a prompt.
    ///
    /// Args:
    ///     token_ids: the prompt, as for ``best_worker``.
    ///     model: the model; needed where the workers serve several.
    ///
    /// Returns:
    ///     A dict for each rank of each worker: ``worker_id``, its name; ``dp_rank``;
    ///     ``potential_prefill_tokens``, the prompt tokens that it would have to compute, this
    ///     prompt's and those before it; ``potential_decode_blocks``, the KV blocks that its
    ///     sequences would have.
    ///
    /// Raises:
    ///     WarmrouteError: no worker can take the prompt, or an argument is wrong.
    #[pyo3(signature = (token_ids, *, model = None))]
    fn get_potential_loads(
        &self,
        token_ids: &Bound<'_, PyAny>,
        model: Option<String>,
    ) -> PyResult<Call> {
        let arguments = TokenArguments::read(token_ids, model, None, None)?;
        let tokens = arguments.tokens();
        self.call_with("Router.get_potential_loads", tokens, |router| {
            operations::potential_loads(router, arguments)
        })
    }

    /// Return potential loads, as ``get_potential_loads`` does, on this thread.
    #[pyo3(signature = (token_ids, *, model = None))]
    fn get_potential_loads_blocking(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        model: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let arguments = TokenArguments::read(token_ids, model, None, None)?;
        self.run(py, |router| operations::potential_loads(router, arguments))
    }

    /// Return how many leading blocks of a prompt each usable worker holds.
    ///
    /// Args:
    ///     token_ids: the prompt, as for ``best_worker``.
    ///     model: the model; needed where the workers serve several.
    ///
    /// Returns:
    ///     A dict from ``(worker, dp_rank)`` to a number of blocks, at least 1; workers without the
    ///     first block are left out.
    ///
    /// Raises:
    ///     WarmrouteError: the model is not served, or not named where it must be.
    #[pyo3(signature = (token_ids, *, model = None))]
    fn find_matches_for_request(
        &self,
        token_ids: &Bound<'_, PyAny>,
        model: Option<String>,
    ) -> PyResult<Call> {
        let arguments = TokenArguments::read(token_ids, model, None, None)?;
        let tokens = arguments.tokens();
        self.call_with(
            "Router.find_matches_for_request",
            tokens,
            |router| async move { router.find_matches(&arguments.query()) },
        )
    }

    /// Return matches, as ``find_matches_for_request`` does, on this thread.
    #[pyo3(signature = (token_ids, *, model = None))]
    fn find_matches_for_request_blocking(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        model: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let arguments = TokenArguments::read(token_ids, model, None, None)?;
        self.run(py, |router| async move {
            router.find_matches(&arguments.query())
        })
    }

    /// Record that the worker has computed the prompt of a request.
    ///
    /// Args:
    ///     request_id: the id with which the worker was chosen.
    ///
    /// Raises:
    ///     WarmrouteError: with the code ``reservation_not_found``, no such request is tracked.
    fn mark_prefill_complete(&self, request_id: String) -> PyResult<Call> {
        self.call("Router.mark_prefill_complete", |router| async move {
            router.mark_prefill_complete(&request_id)
        })
    }

    /// Record a computed prompt, as ``mark_prefill_complete`` does, on this thread.
    fn mark_prefill_complete_blocking(
        &self,
        py: Python<'_>,
        request_id: String,
    ) -> PyResult<Py<PyAny>> {
        self.run(py, |router| async move {
            router.mark_prefill_complete(&request_id)
        })
    }

    /// End the tracking of a request: its load is gone.
    ///
    /// Args:
    ///     request_id: the id with which the worker was chosen.
    ///
    /// Raises:
    ///     WarmrouteError: with the code ``reservation_not_found``, no such request is tracked.
    fn free(&self, request_id: String) -> PyResult<Call> {
        self.call(
            "Router.free",
            |router| async move { router.free(&request_id) },
        )
    }

    /// End the tracking of a request, as ``free`` does, on this thread.
    fn free_blocking(&self, py: Python<'_>, request_id: String) -> PyResult<Py<PyAny>> {
        self.run(py, |router| async move { router.free(&request_id) })
    }

    /// Decide about a request, and return the whole receipt of the decision.
    ///
    /// Args:
    ///     token_ids: the prompt, as for ``best_worker``; or one of ``messages`` and ``prompt`` is
    ///         among ``fields``.
    ///     router_config_override: as for ``best_worker``.
    ///     request_id: as for ``best_worker``.
    ///     model: the model; needed where the workers serve several.
    ///     fields: other fields of a body of ``POST /v1/route``, such as ``policy``, ``worker``,
    ///         ``exclude``, ``tools`` and ``expected_output_tokens``.
    ///
    /// Returns:
    ///     The reply of ``POST /v1/route``: the receipt, ``overlap_blocks``, and with
    ///     ``request_id`` the ``reservation``.
    ///
    /// Raises:
    ///     WarmrouteError: no worker can take the request, or an argument is wrong.
    #[pyo3(signature = (token_ids = None, router_config_override = None, request_id = None, *, model = None, **fields))]
    fn decide(
        &self,
        token_ids: Option<&Bound<'_, PyAny>>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
        model: Option<String>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Call> {
        let fields =
            RouteFields::read(token_ids, model, router_config_override, request_id, fields)?;
        let tokens = fields.tokens;
        self.call_with("Router.decide", tokens, |router| {
            operations::decide(router, fields)
        })
    }

    /// Decide about a request, as ``decide`` does, on this thread.
    #[pyo3(signature = (token_ids = None, router_config_override = None, request_id = None, *, model = None, **fields))]
    fn decide_blocking(
        &self,
        py: Python<'_>,
        token_ids: Option<&Bound<'_, PyAny>>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        request_id: Option<String>,
        model: Option<String>,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let fields =
            RouteFields::read(token_ids, model, router_config_override, request_id, fields)?;
        self.run(py, |router| operations::decide(router, fields))
    }

    /// Send a request for tokens to the best worker, and return its reply as it arrives.
    ///
    /// The stream is an asynchronous iterator of dicts. Each is a choice of a chunk of the reply,
    /// with its new ``token_ids``, its ``text``, its ``index`` and, last, its ``finish_reason``;
    /// the last dict has the ``usage`` and no token ids. Dropping or closing the stream cancels the
    /// request.
    ///
    /// Args:
    ///     token_ids: the prompt, as for ``best_worker``.
    ///     model: the model; needed where the workers serve several.
    ///     stop_conditions: fields of a body of ``/v1/completions`` that end the reply, such as
    ///         ``max_tokens``, ``ignore_eos`` and ``stop``.
    ///     sampling_options: fields of such a body that choose tokens, such as ``temperature``.
    ///     router_config_override: as for ``best_worker``.
    ///     worker_id: the worker to use: its name, or ``NAME/RANK``.
    ///     api_key: the key of a tenant, where the configuration has any.
    ///
    /// Raises:
    ///     WarmrouteError: the request failed, with the code that a client of the HTTP API gets.
    #[pyo3(signature = (token_ids, model = None, stop_conditions = None, sampling_options = None,
                        router_config_override = None, worker_id = None, *, api_key = None))]
    #[allow(
        clippy::too_many_arguments,
        reason = "they are the arguments of the Python method"
    )]
    fn generate(
        &self,
        token_ids: &Bound<'_, PyAny>,
        model: Option<String>,
        stop_conditions: Option<&Bound<'_, PyDict>>,
        sampling_options: Option<&Bound<'_, PyDict>>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        worker_id: Option<String>,
        api_key: Option<String>,
    ) -> PyResult<Call> {
        let options = (stop_conditions, sampling_options, router_config_override);
        let names = (model, worker_id, api_key);
        let generation = GenerationArguments::read(token_ids, options, names)?;
        let tokens = generation.token_ids.len();
        self.call_with("Router.generate", tokens, |router| {
            operations::generate(router, generation)
        })
    }

    /// Send a request for tokens, as ``generate`` does. The stream is an iterator, which waits on
    /// the thread that calls it.
    #[pyo3(signature = (token_ids, model = None, stop_conditions = None, sampling_options = None,
                        router_config_override = None, worker_id = None, *, api_key = None))]
    #[allow(
        clippy::too_many_arguments,
        reason = "they are the arguments of the Python method"
    )]
    fn generate_blocking(
        &self,
        py: Python<'_>,
        token_ids: &Bound<'_, PyAny>,
        model: Option<String>,
        stop_conditions: Option<&Bound<'_, PyDict>>,
        sampling_options: Option<&Bound<'_, PyDict>>,
        router_config_override: Option<&Bound<'_, PyDict>>,
        worker_id: Option<String>,
        api_key: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let options = (stop_conditions, sampling_options, router_config_override);
        let names = (model, worker_id, api_key);
        let generation = GenerationArguments::read(token_ids, options, names)?;
        self.run(py, |router| operations::generate(router, generation))
    }

    /// Return the content of the block index as JSON: a list of the rows of
    /// ``GET /admin/kv-index/dump``, which ``KvIndex.load_events`` takes.
    fn dump_events(&self) -> PyResult<Call> {
        self.call("Router.dump_events", |router| async move {
            router.dump_events().await
        })
    }

    /// Return the content of the block index, as ``dump_events`` does, on this thread.
    fn dump_events_blocking(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, |router| async move { router.dump_events().await })
    }

    /// Load what ``dump_events`` of another router returned.
    ///
    /// Its blocks may have been evicted since, so they count as predicted: for
    /// ``kv_events.prediction.ttl``, unless events of the engines confirm them.
    ///
    /// Args:
    ///     text: a JSON array of rows as ``dump_events`` writes them, or JSON lines of them. Left out
    ///         are rows with a salt, those of workers that this router does not have, or has with
    ///         another block size, and those beyond ``kv_events.prediction.max_blocks``.
    ///
    /// Returns:
    ///     The number of blocks, counted for each worker.
    ///
    /// Raises:
    ///     WarmrouteError: the text is no such array, and nothing was loaded.
    fn load_events(&self, text: String) -> PyResult<Call> {
        self.call("Router.load_events", |router| async move {
            router.load_events(text).await
        })
    }

    /// Load events, as ``load_events`` does, on this thread.
    fn load_events_blocking(&self, py: Python<'_>, text: String) -> PyResult<Py<PyAny>> {
        self.run(py, |router| async move { router.load_events(text).await })
    }

    /// Return the state of all workers: a list of the rows of ``GET /admin/workers``.
    fn workers(&self) -> PyResult<Call> {
        self.call(
            "Router.workers",
            |router| async move { Ok(router.workers()) },
        )
    }

    /// Return the state of all workers, as ``workers`` does, on this thread.
    fn workers_blocking(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, |router| async move { Ok(router.workers()) })
    }

    /// Add a worker, or replace the one of its name. It gets requests as soon as it was probed.
    ///
    /// Args:
    ///     entry: a body of ``PUT /admin/workers/NAME``: an entry of ``workers`` in a
    ///         configuration. With ``lease_ttl``, such as ``"10s"``, the worker is removed unless
    ///         it is put again within that time.
    ///
    /// Returns:
    ///     The worker's name.
    ///
    /// Raises:
    ///     WarmrouteError: the entry cannot be used, and nothing has changed.
    fn put_worker(&self, entry: &Bound<'_, PyDict>) -> PyResult<Call> {
        let entry = json::members("entry", Some(entry))?;
        self.call("Router.put_worker", |router| async move {
            router.put_worker(entry).await
        })
    }

    /// Add or replace a worker, as ``put_worker`` does, on this thread.
    fn put_worker_blocking(
        &self,
        py: Python<'_>,
        entry: &Bound<'_, PyDict>,
    ) -> PyResult<Py<PyAny>> {
        let entry = json::members("entry", Some(entry))?;
        self.run(py, |router| async move { router.put_worker(entry).await })
    }

    /// Remove a worker; its running requests go on.
    ///
    /// Args:
    ///     name: the name of the worker.
    ///
    /// Returns:
    ///     Whether there ever was one of that name.
    ///
    /// Raises:
    ///     WarmrouteError: another part of the configuration needs the worker.
    fn remove_worker(&self, name: String) -> PyResult<Call> {
        self.call("Router.remove_worker", |router| async move {
            router.remove_worker(name).await
        })
    }

    /// Remove a worker, as ``remove_worker`` does, on this thread.
    fn remove_worker_blocking(&self, py: Python<'_>, name: String) -> PyResult<Py<PyAny>> {
        self.run(py, |router| async move { router.remove_worker(name).await })
    }

    /// Return the metrics of the router, as ``GET /metrics`` of the program does: a text in the
    /// format of OpenMetrics.
    fn metrics(&self) -> PyResult<Call> {
        self.call("Router.metrics", |router| async move { router.metrics() })
    }

    /// Return the metrics, as ``metrics`` does, on this thread.
    fn metrics_blocking(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, |router| async move { router.metrics() })
    }

    /// Close the router: cancel its requests, close its listeners and connections. A repeated call
    /// does nothing.
    fn close(&self) -> Call {
        self.closing("Router.close")
    }

    /// Close the router, as ``close`` does, on this thread.
    fn close_blocking(&self, py: Python<'_>) -> PyResult<()> {
        match self.begin_close() {
            // Its sender ends with the close.
            Some(closed) => process_runtime::block_on(py, closed).map(drop),
            None => Ok(()),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close_blocking(py)
    }

    fn __aenter__(slf: Py<Self>) -> Call {
        Call::done("Router.__aenter__", Box::new(move |_| Ok(slf.into_any())))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyTuple>) -> Call {
        self.closing("Router.__aexit__")
    }
}
