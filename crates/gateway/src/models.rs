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
            .any(|worker| worker.served.models.is_empty())
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

#[cfg(test)]
mod tests {
    use fleet::WorkerView;

    use super::*;
    use crate::request::{test_gateway::TestGateway, test_support};

    fn listing(number: u32) -> Arc<WorkerView> {
        let mut worker = test_support::worker(number);
        worker.served.models.push(fleet::ServedModel {
            id: "m".into(),
            root: None,
            max_model_len: None,
            created: 0,
            owned_by: "".into(),
        });
        Arc::new(worker)
    }

    fn snapshot(workers: Vec<Arc<WorkerView>>) -> Snapshot {
        let model = Arc::new(test_support::model(Vec::new()));
        Snapshot {
            workers,
            models: [(Arc::from("m"), model)].into(),
        }
    }

    #[test]
    fn a_model_is_missing_only_if_every_worker_has_listed_its_models() {
        let silent = Arc::new(test_support::worker(2));
        let code = |snapshot: &Snapshot, id| find(snapshot, id).err().map(|error| error.code);
        for (workers, unknown) in [
            (vec![], ErrorCode::NoWorker),
            (vec![listing(1), silent], ErrorCode::NoWorker),
            (vec![listing(1), listing(2)], ErrorCode::ModelNotFound),
        ] {
            let snapshot = snapshot(workers);
            assert_eq!(code(&snapshot, "x"), Some(unknown));
            assert_eq!(code(&snapshot, "m"), None, "it is listed");
        }
    }

    #[test]
    fn the_name_of_a_missing_model_cannot_break_a_log_line() {
        let error = not_found(&format!("a\n{}", "b".repeat(1000)));
        assert_eq!(error.code, ErrorCode::ModelNotFound);
        assert!(!error.message.contains('\n') && error.message.len() < 250);
    }

    #[tokio::test(start_paused = true)]
    async fn without_workers_the_list_is_empty_and_an_alias_of_nothing_is_not_listed() {
        let test = TestGateway::new();
        let names = ModelNames {
            aliases: [("nick".to_owned(), "m".to_owned())].into(),
            ..ModelNames::default()
        };
        let catalog = ModelCatalog {
            names: Arc::new(names),
            ..test.gateway.edge.catalog.clone()
        };
        assert_eq!(catalog.list().await["data"], serde_json::json!([]));
        let error = catalog.one("nick").await.expect_err("nothing serves it");
        assert_eq!(error.code, ErrorCode::ModelNotFound);
    }
}
