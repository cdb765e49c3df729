//! The model list.

use std::sync::Arc;

use dialect::ApiError;
use fleet::{Fleet, ListedModel, ModelListReply};
use net::Clock;
use serde_json::Value;
use tenants::Tenant;

use crate::{errors, model_lists::ModelListRefresher, model_names::ModelNames};

/// The models that workers list, and their aliases.
#[derive(Clone, Debug)]
pub(crate) struct ModelCatalog {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) names: Arc<ModelNames>,
    pub(crate) lists: Arc<ModelListRefresher>,
    pub(crate) clock: Clock,
}

impl ModelCatalog {
    /// `GET /v1/models`: those that the tenant may use.
    pub(crate) async fn list(&self, tenant: Option<&Tenant>) -> Value {
        self.refresh().await;
        let mut list = self.listed();
        if let Some(tenant) = tenant {
            list.data.retain(|model| tenant.models().has(&model.id));
        }
        serde_json::to_value(list).unwrap_or_default()
    }

    async fn refresh(&self) {
        self.lists.wait_until_usable(&self.fleet, self.clock).await;
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
            .ok_or_else(|| errors::model_not_found(id))
    }
}

#[cfg(test)]
mod tests {
    use dialect::ErrorCode;

    use super::*;
    use crate::request::test_gateway::TestGateway;

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
        assert_eq!(catalog.list(None).await["data"], serde_json::json!([]));
        let error = catalog.one("nick").await.expect_err("nothing serves it");
        assert_eq!(error.code, ErrorCode::ModelNotFound);
    }
}
