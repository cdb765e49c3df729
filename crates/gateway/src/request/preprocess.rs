//! Preprocessing: hooks, and the mapping of the model's name to one that workers know.
//!
//! Both may change the body; later stages get only the changed one.

use std::sync::Arc;

use dialect::{ApiError, Edit, ErrorCode};
use fleet::{Fleet, ModelView, Snapshot};

use super::{accept::AcceptedRequest, hooks::Hooks, routing_notes::RoutingNotes};
use crate::{
    errors,
    model_names::ModelNames,
    routes::{BodyMode, Route, RouteHandler},
};

/// The entry in the rewrites header for another model.
const MODEL: &str = "model";

/// The hooks, and the rules of model names.
#[derive(Clone, Debug)]
pub(crate) struct Preprocessor {
    pub(crate) hooks: Hooks,
    pub(crate) names: Arc<ModelNames>,
    pub(crate) fleet: Arc<Fleet>,
    /// Whether a request waits for a worker where none is usable.
    pub(crate) waits_for_worker: bool,
}

impl Preprocessor {
    /// Runs the hooks and determines the model's name. An error is the client's reply.
    pub(super) async fn run(
        &self,
        route: &Route,
        call: &mut AcceptedRequest,
        notes: &mut RoutingNotes,
    ) -> Result<(), ApiError> {
        if route.body == BodyMode::None {
            return Ok(());
        }
        // A token count or a reservation produces no reply that a hook could be about.
        let generates = !matches!(
            route.endpoint,
            RouteHandler::Tokenize
                | RouteHandler::Detokenize
                | RouteHandler::Route
                | RouteHandler::PotentialLoads
        );
        if generates {
            self.hooks.call(route, call, notes).await?;
        }
        if self.names.is_empty() {
            return Ok(());
        }
        self.rename_model(call, notes)
    }

    /// Replaces the model that the request names by the one that serves it.
    fn rename_model(
        &self,
        call: &mut AcceptedRequest,
        notes: &mut RoutingNotes,
    ) -> Result<(), ApiError> {
        // A later stage refuses a body without a model, with the reason.
        let Some(named) = dialect::named_model(call.body.bytes()) else {
            return Ok(());
        };
        let chain = self.names.chain(&named);
        let model = self.chosen(&self.fleet.snapshot(), &chain)?;
        if *model == *named {
            return Ok(());
        }
        let json = serde_json::Value::from(&*model).to_string();
        let Ok(body) = dialect::splice(call.body.bytes(), &[Edit::Set(MODEL, &json)]) else {
            return Ok(());
        };
        call.body.replace(body.into());
        notes.record_model_rename(named.into(), MODEL);
        Ok(())
    }

    /// Returns the first model of a chain that a worker can generate for now. A chain of several models
    /// without one is an error, unless requests wait for workers.
    fn chosen(&self, snapshot: &Snapshot, chain: &[Arc<str>]) -> Result<Arc<str>, ApiError> {
        let views = || {
            chain
                .iter()
                .filter_map(|id| snapshot.model(id).map(|view| (id, view)))
        };
        let usable = views()
            .find(|(_, view)| !view.panic && generates(view))
            .or_else(|| views().find(|(_, v)| generates(v)));
        if let Some((id, _)) = usable {
            return Ok(Arc::clone(id));
        }
        match chain {
            [] => Err(errors::no_worker()),
            // A single one is refused, or waited for, like a model without rules.
            [only] => Ok(Arc::clone(only)),
            [first, ..] if self.waits_for_worker => Ok(Arc::clone(first)),
            _ => Err(ended(snapshot, chain)),
        }
    }
}

fn generates(view: &ModelView) -> bool {
    view.candidates
        .iter()
        .any(|candidate| !candidate.worker.only_prefills())
}

fn ended(snapshot: &Snapshot, chain: &[Arc<str>]) -> ApiError {
    let tried = chain.iter().map(|id| &**id).collect::<Vec<_>>().join(", ");
    // As for one model: if no worker lists it and all have answered, it does not exist.
    let unknown = chain.iter().all(|id| snapshot.model(id).is_none())
        && snapshot
            .workers
            .iter()
            .all(|worker| !worker.models.is_empty());
    if unknown {
        let message = format!(
            "no worker serves any of the models {tried}: GET /v1/models lists those that are served"
        );
        return ApiError::new(ErrorCode::ModelNotFound, message).param("model");
    }
    let message = format!("no worker can be used now for any of the models {tried}: try again");
    ApiError::new(ErrorCode::NoWorker, message).with_retry_after(1)
}
