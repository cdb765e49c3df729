//! Preprocessing: hooks, and the mapping of the model's name to one that workers know.
//!
//! Both may change the body; later stages get only the changed one.

use std::sync::Arc;

use dialect::{ApiError, Edit, ErrorCode};
use fleet::{Fleet, ModelView, Snapshot};
use routing::QueueSettings;
use tenants::Tenant;

use super::{
    accept::AcceptedRequest,
    hooks::{HookedRoute, Hooks},
    media_urls,
    receipt::RoutingNotes,
    rights, salt,
};
use crate::{
    errors,
    model_names::ModelNames,
    routes::{BodyMode, Route, RouteHandler},
};

/// The entry in the rewrites header for another model.
pub(super) const MODEL: &str = "model";

/// The hooks, and the rules of model names.
#[derive(Clone, Debug)]
pub(crate) struct Preprocessor {
    pub(crate) hooks: Hooks,
    pub(crate) names: Arc<ModelNames>,
    pub(crate) fleet: Arc<Fleet>,
    /// Has the wait of a request where no worker is usable.
    pub(crate) queue: QueueSettings,
}

impl Preprocessor {
    /// Runs the hooks and determines the model's name. An error is the client's reply.
    pub(super) async fn run(
        &self,
        route: &Route,
        call: &mut AcceptedRequest,
        notes: &mut RoutingNotes,
    ) -> Result<(), ApiError> {
        if let Some(tenant) = &call.tenant {
            salt::check_route(tenant, route)?;
        }
        // A form is no JSON: its handler finds the model.
        if route.body != BodyMode::Limited {
            return Ok(());
        }
        if let Some(tenant) = &call.tenant {
            let only_model = || self.fleet.only_model();
            rights::check_body(tenant, route, call.body.bytes(), only_model)?;
            media_urls::check(tenant, call.body.bytes())?;
        }
        // A token count or a reservation produces no reply that a hook could be about.
        let generates = !matches!(
            route.endpoint,
            RouteHandler::Tokenize
                | RouteHandler::Detokenize
                | RouteHandler::InputTokens
                | RouteHandler::Route
                | RouteHandler::PotentialLoads
        );
        if generates && !self.hooks.is_empty() {
            let hooked = self.hooked(route);
            Box::pin(self.hooks.call(&hooked, call, notes)).await?;
        }
        if !self.names.is_empty() {
            self.rename_model(call, notes)?;
        }
        if let Some(tenant) = call.tenant.clone()
            && salt::add(&tenant, route, call)?
        {
            notes.record_rewrite(salt::SALT);
        }
        Ok(())
    }

    fn hooked<'a>(&self, route: &'a Route) -> HookedRoute<'a> {
        let needs_none =
            matches!(route.endpoint, RouteHandler::Generate(kind) if kind.model_is_optional());
        let only_model = (needs_none && !self.hooks.is_empty()).then(|| self.fleet.only_model());
        HookedRoute {
            route,
            only_model: only_model.flatten(),
        }
    }

    /// Returns the model that serves a request which is no JSON and names this model; `what`: such
    /// requests.
    pub(super) fn model_without_json(
        &self,
        call: &AcceptedRequest,
        named: &str,
        what: &str,
    ) -> Result<Arc<str>, ApiError> {
        rights::check_model(call.tenant.as_deref(), named)?;
        if let Some(hook) = self.hooks.first_for(named) {
            let message = format!(
                "the hook {hook:?} is called for this model, and hooks read JSON only: {what} for the model are not accepted"
            );
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).param("model"));
        }
        if self.names.is_empty() {
            return Ok(Arc::from(named));
        }
        let chain = self.names.chain(named);
        self.chosen(&self.fleet.snapshot(), &chain, call.tenant.as_deref())
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
        let model = self.chosen(&self.fleet.snapshot(), &chain, call.tenant.as_deref())?;
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
    /// without one is an error, which names the models that `tenant` may name, unless requests wait
    /// for workers.
    fn chosen(
        &self,
        snapshot: &Snapshot,
        chain: &[Arc<str>],
        tenant: Option<&Tenant>,
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
            [] => Err(errors::no_worker()),
            // A single one is refused, or waited for, like a model without rules.
            [only] => Ok(Arc::clone(only)),
            [first, ..] if !self.queue.engine_wait_timeout.is_zero() => Ok(Arc::clone(first)),
            _ => Err(ended(snapshot, chain, tenant)),
        }
    }
}

fn generates(view: &ModelView) -> bool {
    view.candidates
        .iter()
        .any(|candidate| !candidate.worker.only_prefills())
}

fn ended(snapshot: &Snapshot, chain: &[Arc<str>], tenant: Option<&Tenant>) -> ApiError {
    let may_know = |id: &&Arc<str>| rights::check_model(tenant, id).is_ok();
    let known = chain.iter().filter(may_know);
    let tried = known.map(|id| &**id).collect::<Vec<_>>().join(", ");
    if tried.is_empty() {
        return errors::no_worker();
    }
    // As for one model: if no worker lists it and all have answered, it does not exist.
    let unknown = chain.iter().all(|id| snapshot.model(id).is_none())
        && !snapshot.workers.is_empty()
        && snapshot
            .workers
            .iter()
            .all(|worker| !worker.served.models.is_empty());
    if unknown {
        let message = format!(
            "no worker serves any of the models {tried}: GET /v1/models lists those that are served"
        );
        return ApiError::new(ErrorCode::ModelNotFound, message).param("model");
    }
    let message = format!("no worker can be used now for any of the models {tried}: try again");
    ApiError::new(ErrorCode::NoWorker, message).with_retry_after(1)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use bytes::Bytes;
    use config::ModelRule;
    use fleet::{ServedModel, WorkerView};
    use http::Method;
    use kv_blocks::Role;

    use super::*;
    use crate::{
        request::{test_gateway::TestGateway, test_support},
        routes::{self, RouteMatch},
    };

    fn route(path: &str) -> &'static Route {
        match routes::find(&Method::POST, path) {
            RouteMatch::Route(route) => route,
            other => panic!("{path}: {other:?}"),
        }
    }

    fn names(fallback: &[&str]) -> Arc<ModelNames> {
        let fallback = fallback.iter().map(|name| (*name).to_owned()).collect();
        Arc::new(ModelNames {
            rules: vec![ModelRule {
                pattern: "gpt*".to_owned(),
                rewrite: Some("big".to_owned()),
                fallback,
            }],
            aliases: BTreeMap::from([("nick".to_owned(), "m".to_owned())]),
        })
    }

    /// A fleet whose models have these workers.
    fn snapshot(models: &[(&str, &[WorkerView])]) -> Snapshot {
        let view = |(id, workers): &(&str, &[WorkerView])| {
            let model = ModelView {
                id: Arc::from(*id),
                ..test_support::model(workers.to_vec())
            };
            (Arc::from(*id), Arc::new(model))
        };
        let listing = |worker: &WorkerView| {
            let listed = ServedModel {
                id: "listed".into(),
                root: None,
                max_model_len: None,
                created: 0,
                owned_by: "".into(),
            };
            let mut worker = worker.clone();
            worker.served.models = vec![listed];
            Arc::new(worker)
        };
        let workers = models.iter().flat_map(|(_, workers)| *workers);
        Snapshot {
            workers: workers.map(listing).collect(),
            models: models.iter().map(view).collect(),
        }
    }

    fn chosen(snapshot: &Snapshot, chain: &[&str], waits: bool) -> Result<String, ErrorCode> {
        let test = TestGateway::new();
        let mut preprocessor = test.gateway.edge.preprocessor.clone();
        preprocessor.queue.engine_wait_timeout = Duration::from_secs(u64::from(waits));
        let chain: Vec<Arc<str>> = chain.iter().map(|id| Arc::from(*id)).collect();
        let chosen = preprocessor.chosen(snapshot, &chain, None);
        chosen.map(|id| id.to_string()).map_err(|error| error.code)
    }

    #[tokio::test]
    async fn the_first_model_of_a_chain_that_a_worker_can_generate_for_is_chosen() {
        let worker = [test_support::worker(1)];
        let prefill = [WorkerView {
            role: Role::Prefill,
            ..test_support::worker(2)
        }];
        let fleet = snapshot(&[("none", &[]), ("prefill", &prefill), ("b", &worker)]);
        for (chain, model) in [
            (&["b"][..], "b"),
            (&["none", "b"], "b"),
            (&["prefill", "b"], "b"),
            (&["unknown", "b"], "b"),
            (&["unknown"], "unknown"),
        ] {
            assert_eq!(
                chosen(&fleet, chain, false),
                Ok(model.to_owned()),
                "{chain:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_model_whose_workers_are_all_unhealthy_is_the_last_choice() {
        let worker = [test_support::worker(1)];
        let mut fleet = snapshot(&[("a", &worker), ("b", &worker)]);
        let mut panics = |id: &str| {
            let view = fleet.models.get_mut(id).expect("it is there");
            Arc::make_mut(view).panic = true;
            fleet.clone()
        };
        assert_eq!(chosen(&panics("a"), &["a", "b"], false), Ok("b".to_owned()));
        assert_eq!(chosen(&panics("b"), &["a", "b"], false), Ok("a".to_owned()));
    }

    #[tokio::test]
    async fn a_chain_without_a_usable_model_is_refused_unless_requests_wait() {
        let worker = [test_support::worker(1)];
        let listed = snapshot(&[("none", &[]), ("other", &worker)]);
        let both = ["none", "unknown"];
        assert_eq!(chosen(&listed, &both, false), Err(ErrorCode::NoWorker));
        assert_eq!(chosen(&listed, &both, true), Ok("none".to_owned()));
        let unknown = ["unknown", "too"];
        assert_eq!(
            chosen(&listed, &unknown, false),
            Err(ErrorCode::ModelNotFound)
        );
    }

    #[tokio::test]
    async fn without_any_worker_no_model_of_a_chain_is_known_to_be_missing() {
        let empty = Snapshot::default();
        assert_eq!(chosen(&empty, &["a", "b"], false), Err(ErrorCode::NoWorker));
        let silent = Snapshot {
            workers: vec![Arc::new(test_support::worker(1))],
            ..Snapshot::default()
        };
        assert_eq!(
            chosen(&silent, &["a", "b"], false),
            Err(ErrorCode::NoWorker)
        );
    }

    #[tokio::test]
    async fn a_renamed_model_is_spliced_into_the_body_and_noted() {
        let test = TestGateway::new();
        let preprocessor = Preprocessor {
            names: names(&[]),
            ..test.gateway.edge.preprocessor.clone()
        };
        for (path, body, sent, rewrites) in [
            (
                "/v1/completions",
                r#"{ "model":"nick", "n":1}"#,
                r#"{ "model":"m", "n":1}"#,
                1,
            ),
            (
                "/v1/completions",
                r#"{"model":"gpt-4"}"#,
                r#"{"model":"big"}"#,
                1,
            ),
            ("/tokenize", r#"{"model":"gpt-4"}"#, r#"{"model":"big"}"#, 1),
            (
                "/v1/completions",
                r#"{"model":"other"}"#,
                r#"{"model":"other"}"#,
                0,
            ),
            // A later stage refuses these, with the reason.
            ("/v1/completions", r#"{"model":7}"#, r#"{"model":7}"#, 0),
            ("/v1/completions", "[1]", "[1]", 0),
        ] {
            let mut call = test_support::call("");
            call.body.replace(Bytes::from_static(body.as_bytes()));
            let mut notes = RoutingNotes::default();
            let ran = preprocessor.run(route(path), &mut call, &mut notes).await;
            assert!(ran.is_ok(), "{body}");
            assert_eq!(
                (&**call.body.bytes(), notes.rewrites().len()),
                (sent.as_bytes(), rewrites)
            );
        }
    }

    #[tokio::test]
    async fn a_route_without_a_body_is_left_alone() {
        let test = TestGateway::new();
        let preprocessor = Preprocessor {
            names: names(&["c"]),
            ..test.gateway.edge.preprocessor.clone()
        };
        let mut call = test_support::call(r#"{"model":"gpt-4"}"#);
        let mut notes = RoutingNotes::default();
        let without = preprocessor.run(
            route("/v1/route/r1/prefill_complete"),
            &mut call,
            &mut notes,
        );
        assert!(without.await.is_ok());
        let refused = preprocessor
            .run(route("/v1/completions"), &mut call, &mut notes)
            .await;
        assert_eq!(
            refused.map_err(|error| error.code),
            Err(ErrorCode::NoWorker)
        );
    }
}
