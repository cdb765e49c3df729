//! Preprocessing: hooks, and the mapping of the model's name to one that workers know.
//!
//! Both may change the body; later stages get only the changed one.

use std::sync::Arc;

use dialect::{ApiError, Edit, ErrorCode};
use fleet::{ModelView, Snapshot};

use super::{accept::AcceptedRequest, record::RequestGuard};
use crate::{
    Gateway,
    routes::{BodyMode, Route, RouteHandler},
};

/// The entry in the rewrites header for another model.
const MODEL: &str = "model";

/// Runs the hooks and settles the model's name. An error is the client's reply.
pub(super) async fn preprocess(
    gateway: &Gateway,
    route: &Route,
    call: &mut AcceptedRequest,
    settle: &mut RequestGuard,
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
        gateway.hooks.call(gateway, route, call, settle).await?;
    }
    if !gateway.names.is_empty() {
        name(gateway, call, settle)?;
    }
    Ok(())
}

/// Replaces the model that the request names by the one that serves it.
fn name(
    gateway: &Gateway,
    call: &mut AcceptedRequest,
    settle: &mut RequestGuard,
) -> Result<(), ApiError> {
    // A later stage refuses a body without a model, with the reason.
    let Some(asked) = dialect::named_model(call.body.bytes()) else {
        return Ok(());
    };
    let chain = gateway.names.chain(&asked);
    let model = chosen(gateway, &gateway.fleet.snapshot(), &chain)?;
    if *model == *asked {
        return Ok(());
    }
    let json = serde_json::Value::from(&*model).to_string();
    let Ok(body) = dialect::splice(call.body.bytes(), &[Edit::Set(MODEL, &json)]) else {
        return Ok(());
    };
    call.body.replace(body.into());
    settle.notes().record_model_rename(asked.into(), MODEL);
    Ok(())
}

/// Returns the first model of a chain that a worker can generate for now. A chain of several models
/// without one is an error, unless requests wait for workers.
fn chosen(
    gateway: &Gateway,
    snapshot: &Snapshot,
    chain: &[Arc<str>],
) -> Result<Arc<str>, ApiError> {
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
        [] => Err(super::no_worker()),
        // A single one is refused, or waited for, like a model without rules.
        [only] => Ok(Arc::clone(only)),
        [first, ..] if gateway.rules.waiting.no_worker > std::time::Duration::ZERO => {
            Ok(Arc::clone(first))
        }
        _ => Err(ended(snapshot, chain)),
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
