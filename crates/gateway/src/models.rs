//! The model list, and the lookup of a model by name.

use std::sync::Arc;

use dialect::{ApiError, ErrorCode};
use fleet::{Fleet, ListedModel, ModelListReply, ModelView, Snapshot};
use net::Clock;
use serde_json::Value;

use crate::{errors, model_lists::ModelListRefresher, model_names::ModelNames};

/// Returns the view of the model that a request names.
pub(crate) fn find(snapshot: &Snapshot, id: &str) -> Result<Arc<ModelView>, ApiError> {
    if let Some(model) = snapshot.model(id) {
        return Ok(Arc::clone(model));
    }
    // Workers that have never answered, or are yet to appear, may serve any model: it is not known
    // to be missing.
    if snapshot.workers.is_empty()
        || snapshot
            .workers
            .iter()
            .any(|worker| worker.models.is_empty())
    {
        return Err(errors::no_worker());
    }
    Err(not_found(id))
}

/// The models that workers list, and their aliases.
#[derive(Clone, Debug)]
pub(crate) struct ModelCatalog {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) names: Arc<ModelNames>,
    pub(crate) lists: Arc<ModelListRefresher>,
    pub(crate) clock: Clock,
}

impl ModelCatalog {
    /// `GET /v1/models`.
    pub(crate) async fn list(&self) -> Value {
        self.refresh().await;
        serde_json::to_value(self.listed()).unwrap_or_default()
    }

    async fn refresh(&self) {
        self.lists.wait_until_usable(self.clock).await;
    }

    fn listed(&self) -> ModelListReply {
        let mut list = self.fleet.snapshot().model_list();
        let named = |alias: &str, model: &str| {
            let taken = list.data.iter().any(|listed| *listed.id == *alias);
            let listed = list
                .data
                .iter()
                .find(|listed| *listed.id == *model)
                .filter(|_| !taken)?;
            Some(ListedModel {
                id: alias.into(),
                ..listed.clone()
            })
        };
        let aliases = &self.names.aliases;
        let more: Vec<_> = aliases
            .iter()
            .filter_map(|(alias, model)| named(alias, model))
            .collect();
        if !more.is_empty() {
            list.data.extend(more);
            list.data.sort_by(|one, other| one.id.cmp(&other.id));
        }
        list
    }

    /// `GET /v1/models/{id}`.
    pub(crate) async fn one(&self, id: &str) -> Result<Value, ApiError> {
        self.refresh().await;
        let listed = self
            .listed()
            .data
            .into_iter()
            .find(|model| &*model.id == id);
        listed
            .and_then(|model| serde_json::to_value(model).ok())
            .ok_or_else(|| not_found(id))
    }
}

fn not_found(id: &str) -> ApiError {
    let id: String = id.chars().filter(|c| !c.is_control()).take(100).collect();
    ApiError::new(
        ErrorCode::ModelNotFound,
        format!("no worker serves the model {id:?}: GET /v1/models lists those that are served"),
    )
    .param("model")
}
