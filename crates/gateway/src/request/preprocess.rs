//! Before the stages: services of the operator's are asked, and the model gets the name that workers know.
//!
//! Both may change the body; what follows sees only the changed one.

use std::sync::Arc;

use dialect::{ApiError, Edit, ErrorCode};
use fleet::{ModelView, Snapshot};

use super::{accept::AcceptedRequest, record::RequestGuard};
use crate::{
    Gateway,
    routes::{BodyMode, Route, RouteHandler},
};

/// What the header of rewrites says of another model.
const MODEL: &str = "model";

/// Asks the hooks and settles the model's name. An error is the client's answer.
pub(super) async fn preprocess(
    gateway: &Gateway,
    route: &Route,
    call: &mut AcceptedRequest,
    settle: &mut RequestGuard,
) -> Result<(), ApiError> {
    if route.body == BodyMode::None {
        return Ok(());
    }
    // What only asks about a prompt's tokens or a place gives nobody an answer that a hook could mean.
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

/// Puts the model that serves the request in the place of the one that it names.
fn name(
    gateway: &Gateway,
    call: &mut AcceptedRequest,
    settle: &mut RequestGuard,
) -> Result<(), ApiError> {
    // A body that names no model is refused where it is read as a whole, with the reason.
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

/// The first model of a chain that somebody can serve now; of several that nobody can, none.
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
        // One alone is refused, or waited for, where requests without rules are.
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
    // As for one model: where nobody lists it and everybody has answered, it is not there at all.
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
