//! The router inside another program: all of it but the process.
//!
//! The program gives the tokio runtime, and handles signals, logs and the limits of its process.
//! Listeners exist where the settings name them: `server.listen`, `admin.listen`. Decisions and
//! requests take the path of the HTTP API's, without a connection. Several routers in one process
//! share nothing.

mod call_error;
mod generation;
mod index_load;
mod reply;
mod workers;

use std::{fmt, sync::Arc};

use admin::AdminParts;
use bytes::Bytes;
use config::{Override, Problem, ReplicaMode, Settings};
use dialect::{ApiError, ErrorCode};
use gateway::CurrentGateway;
use http::{Request, header};
use net::ListenError;
use tokio::sync::Mutex;

pub use self::{
    call_error::CallError,
    generation::{GenerationQuery, GenerationStream},
    reply::Reply,
};
use crate::{
    live::SourceTexts,
    serve::{self, CheckedStart},
    settings,
    wire_up::{self, ProcessOwner, RunningRouter, StartError, StartOptions},
};
pub use api::{PotentialLoad, WorkerReport};
pub use config::Secret;
pub use gateway::{BestWorker, PrefixMatch, TokenQuery};
pub use routing::receipt::DecisionId;

/// Prefix of the variables that are keys of the program `warmroute`.
const OWN_VARIABLES: &str = "WARMROUTE_";

/// The configuration of an embedded router.
#[derive(Clone, Debug, Default)]
pub struct EmbeddedSettings {
    /// The configuration file's text, YAML or JSON. The environment sets no key; it expands `${NAME}`
    /// in the text, except for its variables that are keys of the program `warmroute`.
    pub text: Option<String>,
    /// Workers as `[NAME=]URL`; if there are any, they replace those of the text.
    pub workers: Vec<String>,
}

/// A router inside this process.
pub struct EmbeddedRouter {
    gateway: Arc<CurrentGateway>,
    view: AdminParts,
    /// `None` after the end; locked while it ends.
    running: Mutex<Option<RunningRouter>>,
}

impl fmt::Debug for EmbeddedRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedRouter").finish_non_exhaustive()
    }
}

impl EmbeddedRouter {
    /// Starts a router on the runtime of the caller. Waits, for a bounded time, until its workers
    /// are known.
    ///
    /// # Errors
    ///
    /// All problems of the configuration, one a line; or the reason why the router cannot start.
    pub async fn start(settings: EmbeddedSettings) -> Result<Self, CallError> {
        let CheckedStart {
            settings,
            admin_tokens,
            sources,
        } = checked(settings).map_err(|problems| CallError::of_problems(&problems))?;
        let tenants = settings::tenants(&settings, None)
            .map_err(|problems| CallError::of_problems(&problems))?;
        let extras = StartOptions {
            tenants: Arc::new(tenants),
            admin_tokens,
            on_verdict: Arc::new(|_| {}),
            takeover: false,
            key_in_arguments: false,
            owner: ProcessOwner::Program,
        };
        let running = Box::pin(wire_up::start(settings, sources, extras)).await;
        let running = running.map_err(|error| CallError::new(start_code(&error), error))?;
        Ok(Self {
            gateway: Arc::clone(&running.gateway),
            view: running.operator_view.clone(),
            running: Mutex::new(Some(running)),
        })
    }

    /// Ends the router: aborts its requests, and waits until everything that it started has ended. A
    /// repeated call only waits.
    pub async fn close(&self) {
        let running = &mut *self.running.lock().await;
        if let Some(running) = running.take() {
            self.gateway.abort_requests();
            running.cut_now().await;
            running.stop().await;
        }
    }

    /// Returns the best target of a prompt, which is reserved if the query has a request id.
    ///
    /// # Errors
    ///
    /// Those of `/v1/route`.
    pub async fn best_worker(&self, query: &TokenQuery<'_>) -> Result<BestWorker, CallError> {
        Ok(self.gateway.current().best_worker(query).await?)
    }

    /// Returns the load that every eligible target would have with the prompt.
    ///
    /// # Errors
    ///
    /// Those of `/v1/route/potential_loads`.
    pub async fn potential_loads(
        &self,
        query: &TokenQuery<'_>,
    ) -> Result<Vec<PotentialLoad>, CallError> {
        Ok(self.gateway.current().potential_loads(query).await?)
    }

    /// Returns the usable targets that hold a beginning of the prompt.
    ///
    /// # Errors
    ///
    /// The model is not served, or not named although there are several.
    pub fn find_matches(&self, query: &TokenQuery<'_>) -> Result<Vec<PrefixMatch>, CallError> {
        Ok(self.gateway.current().find_matches(query)?)
    }

    /// Records that the prompt of a reservation is computed.
    ///
    /// # Errors
    ///
    /// There is no such reservation.
    pub fn mark_prefill_complete(&self, request_id: &str) -> Result<(), CallError> {
        Ok(self.gateway.current().complete_prefill(request_id)?)
    }

    /// Ends a reservation.
    ///
    /// # Errors
    ///
    /// There is no such reservation.
    pub fn free(&self, request_id: &str) -> Result<(), CallError> {
        Ok(self.gateway.current().free_reservation(request_id)?)
    }

    /// Ends the reservation that this decision made under the id, if it is still held. For a caller
    /// that dropped the decision: by now the id may be somebody else's.
    pub fn abandon(&self, request_id: &str, decision: DecisionId) {
        let gateway = self.gateway.current();
        gateway.abandon_reservation(request_id, decision);
    }

    /// Returns the answer of `/v1/route` to this body, as JSON.
    ///
    /// # Errors
    ///
    /// Those of `/v1/route`.
    pub async fn decide(&self, body: String) -> Result<Vec<u8>, CallError> {
        let body = Bytes::from(body);
        Ok(self.gateway.current().route(&body).await?)
    }

    /// Returns the only model that is served, for a request that names none.
    ///
    /// # Errors
    ///
    /// There are several, or no worker has listed one yet.
    pub fn only_model(&self) -> Result<Arc<str>, CallError> {
        Ok(self.gateway.current().only_model()?)
    }

    /// Returns the block index as one JSON list of the rows of `/admin/kv-index/dump`. The content
    /// that changes meanwhile may be in it or not.
    ///
    /// # Errors
    ///
    /// The dump could not be written; the log has the reason.
    pub async fn dump_events(&self) -> Result<String, CallError> {
        let view = self.view.clone();
        let list = runtime::spawn_blocking(move || view.index_dump()).await;
        let list = list.map_err(|error| CallError::new(ErrorCode::Internal, error))?;
        String::from_utf8(list).map_err(|error| CallError::new(ErrorCode::Internal, error))
    }

    /// Loads what [`Self::dump_events`] of another router wrote, and returns the number of blocks. A
    /// dump may be out of date, so they count as predictions: for `kv_events.prediction.ttl`, unless
    /// events confirm them. Blocks of workers that this router does not have are left out, as are
    /// those with a salt.
    ///
    /// # Errors
    ///
    /// The text is no dump; nothing was loaded.
    pub async fn load_events(&self, text: String) -> Result<usize, CallError> {
        let view = self.view.clone();
        let ttl = view.control.settings().kv_events.prediction.ttl;
        let loaded = runtime::spawn_blocking(move || index_load::load(&view, &text, ttl)).await;
        let loaded = loaded.map_err(|error| CallError::new(ErrorCode::Internal, error))?;
        loaded.map_err(|reason| CallError::new(ErrorCode::InvalidRequest, reason))
    }

    /// Returns all metrics in the format of `/metrics`.
    ///
    /// # Errors
    ///
    /// A metric could not be written.
    pub fn metrics(&self) -> Result<String, CallError> {
        Ok(self.view.metrics.text()?)
    }

    /// Sends a JSON body to a route of the data listener, with these header fields. Dropping the
    /// future, or the reply, cancels the request, as a client does that leaves.
    ///
    /// # Errors
    ///
    /// Path or header fields are not those of a request. Every other error is a reply.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, CallError> {
        let mut request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(body)
            .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))?;
        Ok(Reply::new(self.gateway.answer(request).await))
    }

    /// Generates tokens from token ids, through `/v1/completions`.
    ///
    /// # Errors
    ///
    /// Those of the route.
    pub async fn generate(
        &self,
        query: &GenerationQuery<'_>,
    ) -> Result<GenerationStream, CallError> {
        generation::start(self, query).await
    }
}

/// Returns the code of a failed start: a taken address is another process's, or another router's.
fn start_code(error: &StartError) -> ErrorCode {
    match error {
        StartError::Listen(ListenError::Taken { .. }) => ErrorCode::Conflict,
        _ => ErrorCode::Internal,
    }
}

/// Checks a configuration as a start of `warmroute serve` does.
fn checked(embedded: EmbeddedSettings) -> Result<CheckedStart, Vec<Problem>> {
    let mut env = settings::environment();
    env.retain(|(name, _)| !name.starts_with(OWN_VARIABLES));
    let workers = embedded.workers.into_iter().map(|value| Override {
        path: "workers".to_owned(),
        value,
        flag: "workers".to_owned(),
    });
    let sources = SourceTexts::of_text(embedded.text, env, workers.collect());
    let checked = serve::check_sources(sources, Vec::new())?;
    match unreachable_peer(&checked.settings) {
        Some(problem) => Err(vec![problem]),
        None => Ok(checked),
    }
}

/// Returns the problem of a router whose peers could not reach it.
fn unreachable_peer(settings: &Settings) -> Option<Problem> {
    let needs_listener = settings.replicas.mode == ReplicaMode::Peers;
    (needs_listener && !settings.is_set("admin.listen")).then(|| {
        let message = "peers reach each other over the admin listener: set admin.listen too";
        settings.locate(Problem::bad_value("replicas.mode", "peers", message))
    })
}
