//! Hooks: the operator's services that a generation passes before it is routed (contract V44).
//!
//! Each hook gets the request as the one before left it. Its answer is bounded in time and size,
//! and cannot make a body longer than a client's may be. Without a usable answer the configuration
//! decides whether the request goes on.

use std::sync::Arc;

use bytes::Bytes;
use config::{HookEntry, HookErrorAction};
use dialect::{ApiError, ErrorCode, HookAnswer};
use http::{HeaderMap, HeaderValue};
use net::{Destinations, WorkerUrl, fetch};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use proxy::{AbortSwitch, headers::REQUEST_ID};

use super::{accept::AcceptedRequest, overrides::printable, receipt::RoutingNotes};
use crate::{
    model_names,
    routes::{Route, RouteHandler},
};

/// The entry in the rewrites header for a hook's body.
const REWRITE: &str = "hook";
/// Extra bytes of an answer around the body.
const AROUND: usize = 64 * 1024;

/// Labels of the counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookResult {
    hook: String,
    result: &'static str,
}

/// Bounds of a hook's call beside its own settings.
#[derive(Clone, Debug)]
pub(crate) struct HookLimits {
    /// Longest body that a hook may return, in bytes.
    pub(crate) max_body_bytes: usize,
    /// Ends the call at the end of a drain.
    pub(crate) abort: Arc<AbortSwitch>,
}

/// All hooks, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Hooks {
    hooks: Vec<HookClient>,
    limits: HookLimits,
    results: Family<HookResult, Counter>,
}

#[derive(Clone, Debug)]
struct HookClient {
    settings: HookEntry,
    /// The URL without its path, and the path.
    origin: WorkerUrl,
    path: String,
}

/// The result of one call.
enum HookOutcome {
    Allow,
    Transform(Bytes),
    Reject {
        status: Option<u16>,
        message: Option<String>,
    },
}

impl Hooks {
    /// Creates the hooks; every result has its counter from the start.
    pub(crate) fn new(settings: &[HookEntry], limits: HookLimits, registry: &mut Registry) -> Self {
        let results = Family::<HookResult, Counter>::default();
        registry.register(
            "warmroute_hooks",
            "Requests by what a hook said of them",
            results.clone(),
        );
        Self::of(settings, limits, results)
    }

    /// Returns other hooks with the same counters.
    pub(crate) fn with_hooks(&self, settings: &[HookEntry], max_body_bytes: usize) -> Self {
        let limits = HookLimits {
            max_body_bytes,
            ..self.limits.clone()
        };
        Self::of(settings, limits, self.results.clone())
    }

    fn of(
        settings: &[HookEntry],
        limits: HookLimits,
        results: Family<HookResult, Counter>,
    ) -> Self {
        for hook in settings {
            for result in ["allow", "transform", "reject", "error"] {
                drop(results.get_or_create(&HookResult {
                    hook: hook.name.clone(),
                    result,
                }));
            }
        }
        Self {
            hooks: settings.iter().filter_map(HookClient::new).collect(),
            limits,
            results,
        }
    }

    /// Calls each hook that is for the request's model. An error is the client's reply.
    pub(super) async fn call(
        &self,
        hooked: &HookedRoute<'_>,
        call: &mut AcceptedRequest,
        notes: &mut RoutingNotes,
    ) -> Result<(), ApiError> {
        for hook in &self.hooks {
            let models = hooked.models(call.body.bytes());
            // A later stage refuses a body that is not a request, with the reason.
            let Some(models) = models else { return Ok(()) };
            if !models.iter().any(|model| hook.is_for(model)) {
                continue;
            }
            let outcome = hook.outcome(&self.limits, hooked.route, call).await;
            let (result, refusal) = match outcome {
                Ok(HookOutcome::Allow) => ("allow", None),
                Ok(HookOutcome::Transform(body)) => {
                    call.body.replace(body);
                    notes.record_rewrite(REWRITE);
                    ("transform", None)
                }
                Ok(HookOutcome::Reject { status, message }) => {
                    ("reject", Some(hook.rejection(status, message)))
                }
                Err(reason) => {
                    tracing::warn!(hook = %hook.settings.name, %reason, "a hook gave no usable answer");
                    let rejects = hook.settings.on_error == HookErrorAction::Reject;
                    ("error", rejects.then(|| hook.failure()))
                }
            };
            self.results
                .get_or_create(&HookResult {
                    hook: hook.settings.name.clone(),
                    result,
                })
                .inc();
            notes.hook(&hook.settings.name, result);
            if let Some(error) = refusal {
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Hooks {
    pub(super) fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Returns the name of the first hook that is for this model.
    pub(super) fn first_for(&self, model: &str) -> Option<&str> {
        let hook = self.hooks.iter().find(|hook| hook.is_for(model));
        hook.map(|hook| hook.settings.name.as_str())
    }
}

/// The route of a request, and the model that serves a body without one there.
#[derive(Debug)]
pub(crate) struct HookedRoute<'a> {
    pub(crate) route: &'a Route,
    /// Set only for a route whose bodies need no model.
    pub(crate) only_model: Option<Arc<str>>,
}

impl HookedRoute<'_> {
    /// Returns the model that serves a body and the one that it names; `None` without any.
    fn models(&self, body: &[u8]) -> Option<Vec<String>> {
        let named = dialect::named_model(body);
        let kind = match self.route.endpoint {
            RouteHandler::Generate(kind) if kind.model_is_optional() => kind,
            _ => return named.map(|model| vec![model]),
        };
        let view = dialect::view(kind, body).ok()?;
        let served = if view.model.is_empty() {
            self.only_model.as_deref()?.to_owned()
        } else {
            view.model.into_owned()
        };
        Some([Some(served), named].into_iter().flatten().collect())
    }
}

impl HookClient {
    /// Returns whether it is called for requests of this model.
    fn is_for(&self, model: &str) -> bool {
        let own = &self.settings.models;
        own.is_empty()
            || own
                .iter()
                .any(|pattern| model_names::matches(pattern, model))
    }

    /// Returns the client of a hook; its URL was checked with the configuration.
    fn new(settings: &HookEntry) -> Option<Self> {
        let (origin, path) = settings.url.parse::<WorkerUrl>().ok()?.into_origin();
        Some(Self {
            settings: settings.clone(),
            origin: origin.only_at(Destinations::Engines),
            path,
        })
    }

    async fn outcome(
        &self,
        limits: &HookLimits,
        route: &Route,
        call: &AcceptedRequest,
    ) -> Result<HookOutcome, String> {
        let body = dialect::hook_question(&call.request_id, route.path, call.body.bytes())
            .ok_or("the request is not one JSON object")?;
        let mut headers = HeaderMap::new();
        if let Ok(id) = HeaderValue::try_from(&*call.request_id) {
            headers.insert(REQUEST_ID, id);
        }
        let most = limits.max_body_bytes;
        let response = fetch::post(
            &self.origin,
            &self.path,
            &headers,
            Some(body.into()),
            self.settings.timeout,
            most.saturating_add(AROUND),
        );
        let reply = tokio::select! {
            reply = response => reply.map_err(|error| error.to_string())?,
            () = limits.abort.aborted() => return Err("the router is going down".to_owned()),
        };
        if reply.status.as_u16() != 200 {
            return Err(format!("status {} in place of 200", reply.status.as_u16()));
        }
        match dialect::hook_answer(&reply.body) {
            None => Err("the reply is none of allow, reject and transform".to_owned()),
            Some(HookAnswer::Allow) => Ok(HookOutcome::Allow),
            Some(HookAnswer::Reject { status, message }) => Ok(HookOutcome::Reject {
                status,
                message: message.map(|message| printable(&message)),
            }),
            Some(HookAnswer::Transform(body)) if body.as_str().len() > most => Err(format!(
                "a body of {} bytes, at most {most} are accepted",
                body.as_str().len()
            )),
            Some(HookAnswer::Transform(body)) => Ok(HookOutcome::Transform(
                reply.body.slice_ref(body.as_str().as_bytes()),
            )),
        }
    }

    fn rejection(&self, status: Option<u16>, message: Option<String>) -> ApiError {
        let own = self.settings.on_reject.message.clone().or(message);
        let message = own.unwrap_or_else(|| {
            format!(
                "the request was rejected by the hook {}",
                self.settings.name
            )
        });
        ApiError::new(ErrorCode::HookRejected, message)
            .with_status(status.unwrap_or(self.settings.on_reject.status))
    }

    fn failure(&self) -> ApiError {
        let message = format!(
            "the hook {} could not say whether the request may go on: try again",
            self.settings.name
        );
        ApiError::new(ErrorCode::HookFailed, message).with_retry_after(1)
    }
}

#[cfg(test)]
mod tests;
